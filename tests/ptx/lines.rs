//! The source lines that kernels carry.

use std::collections::BTreeSet;
use std::path::Path;

/// Every file named is one of the device source, and no line is beyond its end; a kernel has many lines. Calls are numbered
/// in a row.
pub(crate) fn check(text: &str) -> Result<(), String> {
    let mut lengths = vec![0];
    for (i, file) in text.lines().filter_map(|l| l.trim().strip_prefix(".file\t")).enumerate() {
        let name = file.split('"').nth(1).unwrap_or_default();
        if file.split(' ').next() != Some(&(i + 1).to_string()) || !name.starts_with("device/src/")
        {
            return Err(format!(".file {file}"));
        }
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        let source = std::fs::read_to_string(&path).map_err(|e| format!("{name}: {e}"))?;
        lengths.push(source.lines().count());
    }
    let mut places = BTreeSet::new();
    let mut named = |file: Option<&str>, line: Option<&str>| {
        let number = |n: Option<&str>| n.and_then(|n| n.parse::<usize>().ok());
        let place = (number(file)?, number(line)?);
        let there = lengths.get(place.0).is_some_and(|&length| place.1 <= length);
        there.then(|| places.insert(place))
    };
    let mut calls = 0;
    for line in text.lines().filter_map(|l| l.strip_prefix("//")).filter(|l| l.contains(':')) {
        calls += 1;
        let words: Vec<&str> = line.split(' ').collect();
        let (file, at) = words.get(1).and_then(|place| place.split_once(':')).unzip();
        let by = words.get(2).map_or(Some(0), |by| by.parse().ok());
        if words[0] != calls.to_string()
            || named(file, at).is_none()
            || by.is_none_or(|by: usize| by >= calls)
        {
            return Err(format!("call {calls}: //{line}"));
        }
    }
    for loc in text.lines().filter_map(|l| l.trim().strip_prefix(".loc\t")) {
        let (own, call) = loc.split_once(" //").unwrap_or((loc, "1"));
        let mut own = own.split(' ');
        if named(own.next(), own.next()).is_none() {
            return Err(format!(".loc {loc}: there is no such line"));
        }
        if call.parse().map_or(true, |call: usize| call == 0 || call > calls) {
            return Err(format!(".loc {loc}: there is no such call"));
        }
    }
    if places.len() < 100 {
        return Err(format!("names {} source lines", places.len()));
    }
    Ok(())
}
