//! `cairn completion SHELL`: the script that makes a shell complete command lines. The scripts call the program for the
//! words that fit, so that remote paths, volumes and layouts are completed too; [`complete_if_asked`] answers them.
//!
//! What an argument is, is told in one place, [`KINDS`]. Whatever fails completes nothing: a person who presses the tab
//! key is not to read an error, nor to wait.
mod remote_words;

use crate::error::{CliError, Result};
use crate::exit::Exit;
use clap::{Args, ValueEnum};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter};
use clap_complete::env::{EnvCompleter, Fish, Shells, Zsh};
use std::ffi::{OsStr, OsString};
use std::io::Write;

/// The scripts set this to the name of the shell.
const VARIABLE: &str = "CAIRN_COMPLETE";

#[derive(Args, Debug)]
#[command(after_help = "Example: cairn completion bash > /etc/bash_completion.d/cairn")]
pub struct CompletionArgs {
    /// Whose script
    shell: Shell,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Bash takes words apart at `:` and `=`, which are in remote paths and options: this puts them together before it
/// asks, and leaves out of the answers what Bash holds for other words.
const BASH: &str = r#"_cairn() {
    local line=${COMP_LINE:0:COMP_POINT} words word reply
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    word=${words[${#words[@]}-1]}
    mapfile -t reply < <(_CLAP_IFS=$'\n' _CLAP_COMPLETE_INDEX=$((${#words[@]} - 1)) CAIRN_COMPLETE=bash cairn -- "${words[@]}" 2> /dev/null)
    local cut=${word%"${word##*[:=]}"} one
    COMPREPLY=()
    for one in "${reply[@]}"; do
        [[ -n $one ]] && COMPREPLY+=("${one#"$cut"}")
    done
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=/:] ]] && compopt -o nospace
    return 0
}
complete -F _cairn -o bashdefault cairn
"#;

impl CompletionArgs {
    pub fn run(self) -> Result<()> {
        let mut script = Vec::new();
        let written = match self.shell {
            Shell::Bash => script.write_all(BASH.as_bytes()),
            Shell::Zsh => Zsh.write_registration(VARIABLE, "cairn", "cairn", "cairn", &mut script),
            Shell::Fish => Fish.write_registration(VARIABLE, "cairn", "cairn", "cairn", &mut script),
        };
        written.map_err(|error| CliError::refused(Exit::Other, format!("the script cannot be made: {error}")))?;
        std::io::stdout().write_all(&script).map_err(CliError::stdout)
    }
}

/// What an argument names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Remote,
    /// Local files and remote paths: of `put` and `get` each is one of them.
    LocalOrRemote,
    Layout,
    Volume,
    Snapshot,
    /// `PATH` or `PATH@SNAPSHOT`.
    AtSnapshot,
}

/// Verbs of `cairn fs` whose operands are something else than remote paths.
const KINDS: &[(&str, &str, Kind)] = &[
    ("fs put", "paths", Kind::LocalOrRemote),
    ("fs get", "paths", Kind::LocalOrRemote),
    ("fs clone", "source", Kind::AtSnapshot),
    ("fs clone", "target", Kind::Remote),
    ("fs snapshot delete", "name", Kind::Snapshot),
    ("fs snapshot diff", "new", Kind::Snapshot),
    ("fs snapshot diff", "old", Kind::Snapshot),
    ("fs snapshot rename", "name", Kind::Snapshot),
    ("fs snapshot restore", "source", Kind::AtSnapshot),
    ("admin volume set", "name", Kind::Volume),
    ("admin volume delete", "name", Kind::Volume),
    ("admin volume restore", "name", Kind::Volume),
    ("admin volume purge", "name", Kind::Volume),
    ("admin partition ls", "volume", Kind::Volume),
    ("admin fsck", "volume", Kind::Volume),
];
/// Names of arguments of `cairn fs` that are remote paths wherever they occur.
const REMOTE: &[&str] = &["path", "paths", "directory", "link", "reference", "newer", "to", "source"];

/// What an argument of a command is, as far as this program knows values of it.
fn kind(command: &str, argument: &clap::Arg) -> Option<Kind> {
    let id = argument.get_id().as_str();
    if let Some((.., kind)) = KINDS.iter().find(|(of, name, _)| *of == command && *name == id) {
        return Some(*kind);
    }
    let in_fs = command.starts_with("fs ");
    match id {
        "layout" => Some(Kind::Layout),
        // The pattern of a test.
        "path" if command == "fs find" => None,
        id if in_fs && REMOTE.contains(&id) => Some(Kind::Remote),
        _ => None,
    }
}

fn layouts(current: &OsStr) -> Vec<CompletionCandidate> {
    let current = current.as_encoded_bytes();
    let fits = crate::fs::LAYOUTS.iter().copied().filter(|layout| layout.as_bytes().starts_with(current));
    fits.map(CompletionCandidate::new).collect()
}

fn local_or_remote(current: &OsStr) -> Vec<CompletionCandidate> {
    let mut words = PathCompleter::any().complete(current);
    words.extend(remote_words::paths(current));
    words
}

/// Tells each argument of the command line how its values are found.
fn with_values(command: clap::Command, path: &str) -> clap::Command {
    let at = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path} {name}") };
    let shown = path.to_owned();
    command
        .mut_args(|argument| match kind(&shown, &argument) {
            Some(Kind::Remote) => argument.add(ArgValueCompleter::new(remote_words::paths)),
            Some(Kind::LocalOrRemote) => argument.add(ArgValueCompleter::new(local_or_remote)),
            Some(Kind::Layout) => argument.add(ArgValueCompleter::new(layouts)),
            Some(Kind::Volume) => argument.add(ArgValueCompleter::new(remote_words::volumes)),
            Some(Kind::Snapshot) => argument.add(ArgValueCompleter::new(remote_words::snapshots)),
            Some(Kind::AtSnapshot) => argument.add(ArgValueCompleter::new(remote_words::paths_at)),
            None => argument,
        })
        .mut_subcommands(|verb| {
            let path = at(verb.get_name());
            with_values(verb, &path)
        })
}

/// If a script of [`CompletionArgs`] started this process: prints the words that fit, and says that there is nothing
/// else to do.
pub fn complete_if_asked(cli: fn() -> clap::Command) -> bool {
    let Some(shell) = std::env::var_os(VARIABLE) else { return false };
    let shells = Shells::builtins();
    let Some(shell) = shell.to_str().and_then(|name| shells.completer(name)) else { return true };
    let words: Vec<OsString> = std::env::args_os().skip_while(|word| word != "--").skip(1).collect();
    let here = std::env::current_dir().ok();
    let mut out = Vec::new();
    if shell.write_complete(&mut with_values(cli(), ""), words, here.as_deref(), &mut out).is_ok() {
        // The shell has gone: nobody is waiting.
        drop(std::io::stdout().write_all(&out));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[derive(Parser, Debug)]
    #[command(name = "cairn")]
    struct Cli {
        #[command(flatten)]
        global: crate::GlobalArgs,
        #[command(subcommand)]
        command: crate::Command,
    }

    fn walk(command: &clap::Command, path: &str, seen: &mut dyn FnMut(&str, &clap::Arg)) {
        command.get_arguments().for_each(|argument| seen(path, argument));
        for verb in command.get_subcommands() {
            let path = if path.is_empty() { verb.get_name().to_owned() } else { format!("{path} {}", verb.get_name()) };
            walk(verb, &path, seen);
        }
    }

    /// An argument that was renamed would no longer be completed.
    #[test]
    fn the_table_names_arguments_that_exist() {
        let mut all = Vec::new();
        walk(&Cli::command(), "", &mut |path, argument| all.push((path.to_owned(), argument.get_id().to_string())));
        for (command, argument, _) in KINDS {
            assert!(all.contains(&((*command).into(), (*argument).into())), "{command} has no {argument}");
        }
        for argument in REMOTE {
            assert!(all.iter().any(|(path, id)| path.starts_with("fs ") && id == argument), "nothing has {argument}");
        }
    }

    /// A verb for files whose path the tab key does not know.
    #[test]
    fn operands_of_every_verb_for_files_are_known() {
        // Texts, numbers and names that no cluster knows.
        let others = ["mode", "owner", "name", "new_name", "value", "time", "jobs", "job", "volume", "target"];
        walk(&Cli::command(), "", &mut |path, argument| {
            let id = argument.get_id().as_str();
            if path.starts_with("fs ") && argument.is_positional() && !others.contains(&id) {
                assert!(kind(path, argument).is_some(), "cairn {path} {id}");
            }
        });
    }

    fn words(line: &[&str]) -> Vec<String> {
        let words: Vec<OsString> = line.iter().map(OsString::from).collect();
        let at = words.len() - 1;
        let found = clap_complete::engine::complete(&mut with_values(Cli::command(), ""), words, at, None);
        found.expect("words").iter().map(|word| word.get_value().to_string_lossy().into_owned()).collect()
    }

    /// The tab key would offer nothing.
    #[test]
    fn verbs_and_layouts_are_completed() {
        assert_eq!(words(&["cairn", "fs", "trunc"]), ["truncate"]);
        let layouts = words(&["cairn", "fs", "put", "--layout", "rs-1"]);
        assert!(layouts.contains(&"rs-10-4".to_owned()) && !layouts.contains(&"r3".to_owned()), "{layouts:?}");
        assert_eq!(words(&["cairn", "fs", "layout", "set", "r2"]), ["r2", "r2x128"]);
    }

    /// The tab key would offer what then is refused.
    #[test]
    fn only_layouts_that_can_be_set_are_offered() {
        for layout in crate::fs::LAYOUTS {
            crate::fs::parse_layout(layout).unwrap_or_else(|error| panic!("{layout}: {error}"));
        }
    }
}
