//! The shape of a type in JSON, found by having it deserialised from nothing by the crate
//! `serde-reflection`: a description is never older than the type.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_reflection::{ContainerFormat, Error, Format, Named, Samples, Tracer, TracerConfig};

/// The members of a structure, in their order: names, and kinds in Varlink's language.
pub type Members = Vec<(String, String)>;
/// Structures by name.
pub type Types = BTreeMap<String, Members>;
/// [`members`] of a type.
pub type Trace = fn(&mut Types) -> Result<Members, Untraceable>;

/// A type of the control protocol has no counterpart in Varlink.
#[derive(Debug, thiserror::Error)]
pub enum Untraceable {
    #[error("a type of the control protocol cannot be traced: {0}")]
    Type(#[from] Error),
    #[error("{0} of the control protocol has no counterpart in Varlink")]
    Kind(String),
}

/// The members of the structure `T`; others in it are added to `types`.
pub fn members<T: DeserializeOwned>(types: &mut Types) -> Result<Members, Untraceable> {
    let mut tracer = Tracer::new(TracerConfig::default().is_human_readable(true));
    let (root, _) = tracer.trace_type_once::<T>(&Samples::new())?;
    for (name, container) in tracer.registry()? {
        let ContainerFormat::Struct(fields) = container else { return Err(Untraceable::Kind(name)) };
        let member = |Named { name, value }| Ok((name, kind(&value)?));
        types.insert(name, fields.into_iter().map(member).collect::<Result<_, Untraceable>>()?);
    }
    types.remove(&kind(&root)?).ok_or_else(|| Untraceable::Kind(format!("{root:?}")))
}

fn kind(format: &Format) -> Result<String, Untraceable> {
    use Format::{Bool, F64, I32, I64, Map, Option, Seq, Str, TypeName, U8, U16, U32, U64};
    Ok(match format {
        Bool => "bool".into(),
        I32 | I64 | U8 | U16 | U32 | U64 => "int".into(),
        F64 => "float".into(),
        Str => "string".into(),
        Option(format) => format!("?{}", kind(format)?),
        // systemd's parser knows no lists of lists and of maps.
        Seq(format) if matches!(**format, Seq(_) | Map { .. }) => "[]object".into(),
        Seq(format) => format!("[]{}", kind(format)?),
        Map { value, .. } => format!("[string]{}", kind(value)?),
        TypeName(name) => name.clone(),
        other => return Err(Untraceable::Kind(format!("{other:?}"))),
    })
}
