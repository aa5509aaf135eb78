//! A strict reader of OpenMetrics 1.0 text, as far as `vmlane metrics` writes it: counters, gauges and infos.

use std::collections::{BTreeMap, BTreeSet};

/// A family of metrics.
#[derive(Debug, Default)]
pub struct Family {
    /// `counter`, `gauge` or `info`.
    pub kind: String,
    pub unit: Option<String>,
    pub help: String,
    pub samples: Vec<Sample>,
}

/// A line with a value.
#[derive(Debug)]
pub struct Sample {
    /// With `_total` or `_info`.
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

/// Families by name.
pub type Families = BTreeMap<String, Family>;

/// The value of the only sample of `name` with these labels.
pub fn value(families: &Families, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let has = |sample: &Sample| {
        sample.name == name
            && labels.iter().all(|(key, value)| sample.labels.get(*key).is_some_and(|is| is == value))
    };
    let mut found = families.values().flat_map(|family| &family.samples).filter(|sample| has(sample));
    let value = found.next()?.value;
    assert!(found.next().is_none(), "{name} {labels:?} is not one sample");
    Some(value)
}

/// Parses a whole text; the error names what is wrong with it.
pub fn parse(text: &str) -> Result<Families, String> {
    let text = text.strip_suffix("# EOF\n").ok_or("it does not end with # EOF")?;
    let mut families = Families::new();
    let mut current = String::new();
    let mut series = BTreeSet::new();
    for line in text.split_terminator('\n') {
        let bad = |why: &str| format!("{why}: {line:?}");
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.splitn(3, ' ');
            let (word, name, rest) = (words.next(), words.next(), words.next());
            let (Some(word), Some(name), Some(rest)) = (word, name, rest) else {
                return Err(bad("a comment without meaning"));
            };
            if name != current {
                if !is_name(name) {
                    return Err(bad("no name of a family"));
                }
                if families.insert(name.into(), Family::default()).is_some() {
                    return Err(bad("a family occurs twice"));
                }
                current = name.into();
            }
            let family = families.get_mut(name).ok_or_else(|| bad("unknown"))?;
            if !family.samples.is_empty() {
                return Err(bad("a comment comes after samples of its family"));
            }
            match word {
                "HELP" => family.help = rest.into(),
                "TYPE" if ["counter", "gauge", "info"].contains(&rest) => family.kind = rest.into(),
                "UNIT" if name.ends_with(&format!("_{rest}")) => family.unit = Some(rest.into()),
                _ => return Err(bad("unknown type, or a unit that the name does not end with")),
            }
            continue;
        }
        let sample = sample(line).map_err(bad)?;
        let family = families.get_mut(&current).ok_or_else(|| bad("a sample without a family"))?;
        let suffix = match family.kind.as_str() {
            "counter" => "_total",
            "info" => "_info",
            "gauge" => "",
            _ => return Err(bad("a sample of a family without a type")),
        };
        if sample.name != format!("{current}{suffix}") {
            return Err(bad("a sample of another family"));
        }
        if family.kind == "counter" && (sample.value < 0.0 || sample.value.is_nan())
            || family.kind == "info" && sample.value != 1.0
        {
            return Err(bad("a value that this type cannot have"));
        }
        if !series.insert((sample.name.clone(), sample.labels.clone())) {
            return Err(bad("a series is there twice"));
        }
        family.samples.push(sample);
    }
    match families.iter().find(|(_, family)| family.help.is_empty() || family.kind.is_empty()) {
        Some((name, _)) => Err(format!("{name} has no help or no type")),
        None => Ok(families),
    }
}

fn is_name(name: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    name.starts_with(|first: char| first.is_ascii_lowercase()) && name.bytes().all(good)
}

fn sample(line: &str) -> Result<Sample, &'static str> {
    let end = line.find(['{', ' ']).ok_or("no value")?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    if let Some(mut inside) = rest.strip_prefix('{') {
        loop {
            let (key, after) = inside.split_once("=\"").ok_or("no label's value")?;
            if !is_name(key) {
                return Err("no name of a label");
            }
            let (value, after) = quoted(after)?;
            if labels.insert(key.to_owned(), value).is_some() {
                return Err("a label is there twice");
            }
            match after.strip_prefix(',') {
                Some(more) => inside = more,
                None => {
                    rest = after.strip_prefix('}').ok_or("labels without an end")?;
                    break;
                }
            }
        }
    }
    let value = rest.strip_prefix(' ').and_then(|value| value.parse().ok()).ok_or("no number")?;
    Ok(Sample { name: name.to_owned(), labels, value })
}

/// The value before the next quotation mark, and what comes after that.
fn quoted(text: &str) -> Result<(String, &str), &'static str> {
    let mut value = String::new();
    let mut rest = text.char_indices();
    while let Some((at, character)) = rest.next() {
        match character {
            '"' => return Ok((value, &text[at + 1..])),
            '\\' => match rest.next() {
                Some((_, 'n')) => value.push('\n'),
                Some((_, escaped @ ('\\' | '"'))) => value.push(escaped),
                _ => return Err("an unknown escape"),
            },
            other => value.push(other),
        }
    }
    Err("a label's value without an end")
}
