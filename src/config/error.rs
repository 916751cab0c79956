//! Why a configuration was refused, in words for the person who wrote it.

use std::fmt;

/// Every problem found, each naming the place, the key, what was found and what was
/// expected. `Display` writes one a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    problems: Vec<String>,
}

impl ConfigError {
    pub(super) fn one(problem: impl Into<String>) -> Self {
        Self { problems: vec![problem.into()] }
    }

    pub(super) fn from_problems(problems: Vec<String>) -> Result<(), Self> {
        if problems.is_empty() { Ok(()) } else { Err(Self { problems }) }
    }

    /// The problems, never none.
    #[must_use]
    pub fn problems(&self) -> &[String] {
        &self.problems
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problems.join("\n"))
    }
}

impl std::error::Error for ConfigError {}

/// Turns serde's text for the value or key at `key` (dotted path) into ours.
pub(super) fn explain(key: &str, message: &str) -> String {
    if let Some(rest) = message.strip_prefix("unknown field ") {
        return unknown_key(key, rest);
    }
    if let Some(rest) = message.strip_prefix("unknown variant ") {
        let (wrong, names) = wrong_and_names(rest);
        let hint = did_you_mean(wrong, &names);
        return format!("{key}: found \"{wrong}\", expected {}{hint}", one_of(&names));
    }
    let found =
        message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "));
    match found.and_then(|found| found.split_once(", expected ")) {
        // toml's words for a number where a name of an enum should be.
        Some(("unit variant", _)) => {
            format!("{key}: found a value that is no string, expected a name in quotes")
        }
        Some((found, expected)) => format!("{key}: found {found}, expected {}", plain(expected)),
        None => format!("{key}: {message}"),
    }
}

/// serde's names of types in words.
fn plain(expected: &str) -> &str {
    match expected {
        "u32" => "a whole number from 0 to 4294967295",
        "usize" => "a whole number, 0 or more",
        "a boolean" => "true or false",
        "a sequence" => r#"a list such as ["one", "two"]"#,
        "path string" => "a path in quotes",
        section if section.starts_with("struct ") => "a section",
        other => other,
    }
}

fn unknown_key(key: &str, rest: &str) -> String {
    let (wrong, names) = wrong_and_names(rest);
    let hint = did_you_mean(wrong, &names);
    let names = names.join(", ");
    match key.rsplit_once('.') {
        Some((section, _)) => {
            format!("{key}: no such key in [{section}]{hint}; allowed: {names}")
        }
        None => format!("{key}: no such section{hint}; allowed: {names}"),
    }
}

/// Takes "`wrong`, expected one of `a`, `b`" apart.
fn wrong_and_names(text: &str) -> (&str, Vec<&str>) {
    let (wrong, names) = text.split_once("`, expected ").unwrap_or((text, ""));
    (wrong.trim_start_matches('`'), names.split('`').skip(1).step_by(2).collect())
}

fn one_of(names: &[&str]) -> String {
    match names {
        [only] => format!("\"{only}\""),
        names => format!("one of \"{}\"", names.join("\", \"")),
    }
}

fn did_you_mean(wrong: &str, names: &[&str]) -> String {
    let nearest = names.iter().map(|name| (distance(wrong, name), name)).min();
    match nearest {
        Some((steps, name)) if steps <= 1 + name.len() / 5 => {
            format!(" (did you mean `{name}`?)")
        }
        _ => String::new(),
    }
}

/// The edit distance of Levenshtein.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replace = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
