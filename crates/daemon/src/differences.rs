//! What a reload does to things that have names, for its report.

/// A line for each that is removed, changed or added; `kind` is what they are called.
pub fn differences<T: PartialEq>(
    kind: &str,
    before: &[T],
    after: &[T],
    name: impl Fn(&T) -> &str,
) -> Vec<String> {
    let known = |list: &[T], one: &T| list.iter().any(|other| name(other) == name(one));
    let gone = before.iter().filter(|one| !known(after, one));
    let gone = gone.map(|one| format!("{kind} {:?}: removed", name(one)));
    let other = after.iter().filter(|one| !before.contains(one)).map(|one| {
        let what = if known(before, one) { "changed" } else { "added" };
        format!("{kind} {:?}: {what}", name(one))
    });
    gone.chain(other).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_reports_what_it_did() {
        let [a, b, more] = [("a", 1), ("b", 1), ("a", 2)];
        for (before, after, report) in [
            (&[][..], &[a][..], "team \"a\": added"),
            (&[a, b], &[more, b], "team \"a\": changed"),
            (&[a, b], &[b], "team \"a\": removed"),
        ] {
            assert_eq!(differences("team", before, after, |(name, _)| name), [report]);
        }
    }
}
