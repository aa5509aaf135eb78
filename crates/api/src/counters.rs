//! Counters by name, in the order in which they were declared: a JSON object on the wire.

use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Names and values. Readers must expect names that they do not know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CounterList(pub Vec<(String, u64)>);

impl CounterList {
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }

    /// The value of a counter; 0 if there is none of that name.
    pub fn get(&self, name: &str) -> u64 {
        self.iter().find(|(other, _)| *other == name).map_or(0, |(_, value)| value)
    }
}

impl<N: Into<String>> FromIterator<(N, u64)> for CounterList {
    fn from_iter<I: IntoIterator<Item = (N, u64)>>(counters: I) -> Self {
        CounterList(counters.into_iter().map(|(name, value)| (name.into(), value)).collect())
    }
}

impl Serialize for CounterList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for CounterList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = CounterList;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("counters by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<CounterList, A::Error> {
                let mut list = CounterList::default();
                while let Some(entry) = map.next_entry()? {
                    list.0.push(entry);
                }
                Ok(list)
            }
        }
        deserializer.deserialize_map(List)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_declaration_survives() {
        let list: CounterList = [("zebra", 1), ("ape", 2)].into_iter().collect();
        let text = serde_json::to_string(&list).unwrap();
        assert_eq!(text, r#"{"zebra":1,"ape":2}"#);
        assert_eq!(serde_json::from_str::<CounterList>(&text).unwrap(), list);
        assert_eq!((list.get("ape"), list.get("bee")), (2, 0));
    }
}
