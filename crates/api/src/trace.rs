//! What a type looks like in JSON, found by having it deserialised from nothing: each member is given the value that it asks for.
//! So a description is never older than the type.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::value::BorrowedStrDeserializer;
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};

/// A type in Varlink's language.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Bool,
    Int,
    Float,
    Text,
    Optional(Box<Kind>),
    List(Box<Kind>),
    /// Values by names.
    Map(Box<Kind>),
    /// One of [`Types`].
    Named(&'static str),
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Bool => f.write_str("bool"),
            Kind::Int => f.write_str("int"),
            Kind::Float => f.write_str("float"),
            Kind::Text => f.write_str("string"),
            Kind::Optional(kind) => write!(f, "?{kind}"),
            // systemd's parser knows no lists of lists and of maps.
            Kind::List(kind) if matches!(**kind, Kind::List(_) | Kind::Map(_)) => f.write_str("[]object"),
            Kind::List(kind) => write!(f, "[]{kind}"),
            Kind::Map(kind) => write!(f, "[string]{kind}"),
            Kind::Named(name) => f.write_str(name),
        }
    }
}

/// The members of a structure, in their order.
pub type Members = Vec<(&'static str, Kind)>;
/// Structures by name.
pub type Types = BTreeMap<&'static str, Members>;
/// [`kind`] of a type.
pub type Trace = fn(&mut Types) -> Result<Kind, Untraceable>;

/// The members of a structure; others in it are added to `types`.
pub fn members(trace: Trace, types: &mut Types) -> Result<Members, Untraceable> {
    let Kind::Named(name) = trace(types)? else { return Err(Untraceable) };
    types.remove(name).ok_or(Untraceable)
}

/// The kind of `T`; structures in it are added to `types`.
pub fn kind<T: Deserialize<'static>>(types: &mut Types) -> Result<Kind, Untraceable> {
    let mut kind = None;
    T::deserialize(Tracer { types, kind: &mut kind })?;
    kind.ok_or(Untraceable)
}

/// A type that is neither a structure, a list, a map, a string, a number nor a truth value.
#[derive(Debug, thiserror::Error)]
#[error("a type of the control protocol has no counterpart in Varlink")]
pub struct Untraceable;

impl de::Error for Untraceable {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Untraceable
    }
}

struct Tracer<'t> {
    types: &'t mut Types,
    kind: &'t mut Option<Kind>,
}

impl Tracer<'_> {
    fn is(self, kind: Kind) {
        *self.kind = Some(kind);
    }
}

/// A method of [`Deserializer`] for a plain value.
macro_rules! plain {
    ($($method:ident: $visit:ident($value:expr) is $kind:ident),+ $(,)?) => {$(
        fn $method<V: Visitor<'static>>(self, visitor: V) -> Result<V::Value, Untraceable> {
            self.is(Kind::$kind);
            visitor.$visit($value)
        }
    )+};
}

impl Deserializer<'static> for Tracer<'_> {
    type Error = Untraceable;

    plain! {
        deserialize_bool: visit_bool(false) is Bool,
        deserialize_i32: visit_i32(0) is Int,
        deserialize_i64: visit_i64(0) is Int,
        deserialize_u8: visit_u8(0) is Int,
        deserialize_u16: visit_u16(0) is Int,
        deserialize_u32: visit_u32(0) is Int,
        deserialize_u64: visit_u64(0) is Int,
        deserialize_f64: visit_f64(0.0) is Float,
        deserialize_str: visit_borrowed_str("") is Text,
        deserialize_string: visit_borrowed_str("") is Text,
    }

    fn deserialize_any<V: Visitor<'static>>(self, _: V) -> Result<V::Value, Untraceable> {
        Err(Untraceable)
    }

    fn deserialize_option<V: Visitor<'static>>(self, visitor: V) -> Result<V::Value, Untraceable> {
        let mut inner = None;
        let value = visitor.visit_some(Tracer { types: self.types, kind: &mut inner })?;
        *self.kind = inner.map(|inner| Kind::Optional(Box::new(inner)));
        Ok(value)
    }

    fn deserialize_seq<V: Visitor<'static>>(self, visitor: V) -> Result<V::Value, Untraceable> {
        let mut inner = None;
        let value = visitor.visit_seq(One { types: self.types, kind: &mut inner })?;
        *self.kind = inner.map(|inner| Kind::List(Box::new(inner)));
        Ok(value)
    }

    fn deserialize_map<V: Visitor<'static>>(self, visitor: V) -> Result<V::Value, Untraceable> {
        let mut inner = None;
        let value = visitor.visit_map(One { types: self.types, kind: &mut inner })?;
        *self.kind = inner.map(|inner| Kind::Map(Box::new(inner)));
        Ok(value)
    }

    fn deserialize_struct<V: Visitor<'static>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Untraceable> {
        let mut members = Vec::new();
        let value = visitor.visit_map(Fields { types: self.types, left: fields, members: &mut members })?;
        self.types.insert(name, members);
        self.is(Kind::Named(name));
        Ok(value)
    }

    forward_to_deserialize_any! {
        <V: Visitor<'static>>
        i8 i16 i128 u128 f32 char bytes byte_buf unit unit_struct newtype_struct tuple tuple_struct enum identifier
        ignored_any
    }
}

/// A list with one element, or a map with one entry.
struct One<'t> {
    types: &'t mut Types,
    kind: &'t mut Option<Kind>,
}

impl SeqAccess<'static> for One<'_> {
    type Error = Untraceable;

    fn next_element_seed<T: DeserializeSeed<'static>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Untraceable> {
        if self.kind.is_some() {
            return Ok(None);
        }
        seed.deserialize(Tracer { types: self.types, kind: self.kind }).map(Some)
    }
}

impl MapAccess<'static> for One<'_> {
    type Error = Untraceable;

    fn next_key_seed<K: DeserializeSeed<'static>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Untraceable> {
        if self.kind.is_some() {
            return Ok(None);
        }
        seed.deserialize(BorrowedStrDeserializer::new("")).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'static>>(&mut self, seed: V) -> Result<V::Value, Untraceable> {
        seed.deserialize(Tracer { types: self.types, kind: self.kind })
    }
}

/// The members of a structure.
struct Fields<'t> {
    types: &'t mut Types,
    left: &'static [&'static str],
    members: &'t mut Members,
}

impl MapAccess<'static> for Fields<'_> {
    type Error = Untraceable;

    fn next_key_seed<K: DeserializeSeed<'static>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Untraceable> {
        let Some(name) = self.left.first() else { return Ok(None) };
        seed.deserialize(BorrowedStrDeserializer::new(name)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'static>>(&mut self, seed: V) -> Result<V::Value, Untraceable> {
        let (name, left) = self.left.split_first().ok_or(Untraceable)?;
        self.left = left;
        let mut kind = None;
        let value = seed.deserialize(Tracer { types: self.types, kind: &mut kind })?;
        self.members.push((name, kind.ok_or(Untraceable)?));
        Ok(value)
    }
}
