//! What to type instead: a line behind the usage error, for a command that is elsewhere, or an example of the one that
//! was meant.
use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsString;

/// Commands that are named; more would be a list to read.
const NAMED: usize = 3;

/// The next step after a usage error, if one is known.
pub fn hint(error: &clap::Error, command: &Command, args: &[OsString]) -> Option<String> {
    if !error.use_stderr() {
        return None;
    }
    if error.kind() == ErrorKind::InvalidSubcommand {
        let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand) else { return None };
        let mut found = Vec::new();
        named(command, name, "cairn", &mut found);
        found.sort_by_key(|path| path.split(' ').count());
        found.truncate(NAMED);
        return (!found.is_empty()).then(|| format!("did you mean {}?", found.join(" or ")));
    }
    let example = crate::examples::first(&meant(command, args))?;
    Some(format!("example: {example}"))
}

/// Every command of this name, as it is typed.
fn named(command: &Command, name: &str, path: &str, found: &mut Vec<String>) {
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        let path = format!("{path} {}", sub.get_name());
        named(sub, name, &path, found);
        if sub.get_name() == name || sub.get_all_aliases().any(|alias| alias == name) {
            found.push(path);
        }
    }
}

/// The words of the command that the arguments name, as the table of examples has them.
fn meant(command: &Command, args: &[OsString]) -> String {
    let (mut here, mut words) = (command, Vec::new());
    for arg in args.iter().skip(1).filter_map(|arg| arg.to_str()) {
        if let Some(sub) = here.find_subcommand(arg) {
            words.push(sub.get_name());
            here = sub;
        }
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint_of(line: &str) -> Option<String> {
        let command = crate::command_line();
        let args: Vec<OsString> = line.split(' ').map(Into::into).collect();
        let error = command.clone().try_get_matches_from(&args).expect_err("the line is wrong");
        hint(&error, &command, &args)
    }

    /// Who types `cairn ls` would have to search the help pages for the command.
    #[test]
    fn a_command_that_is_elsewhere_is_named() {
        assert_eq!(hint_of("cairn ls /").as_deref().map(|text| text.contains("cairn fs ls")), Some(true));
        assert_eq!(hint_of("cairn admin node drain").as_deref(), Some("did you mean cairn admin drain?"));
        assert_eq!(hint_of("cairn nothing-of-this-name"), None);
    }

    /// Who forgets an option would read a line of brackets instead of one that works.
    #[test]
    fn a_wrong_line_gets_one_that_is_right() {
        let hint = hint_of("cairn fs quota set /a 5g").expect("the command has an example");
        assert!(hint.starts_with("example: cairn fs quota set") && hint.contains("--bytes"), "{hint}");
        assert_eq!(hint_of("cairn --nonsense"), None);
    }

    /// Help that was asked for is no mistake.
    #[test]
    fn help_has_no_hint() {
        assert_eq!(hint_of("cairn fs ls --help"), None);
    }
}
