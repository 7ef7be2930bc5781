//! Remote paths and volumes that begin with a word, asked of the cluster that the command line names.
use crate::args::GlobalArgs;
use crate::context::Context;
use crate::error::Result;
use crate::mode;
use crate::remote::{NamedFor, Pages, attributes_of, find};
use clap_complete::engine::CompletionCandidate;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::future::Future;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::pin::Pin;
use std::time::Duration;

/// A person waits no longer for the tab key.
const WITHIN: Duration = Duration::from_secs(2);
/// More words help nobody.
const WORDS_MAX: usize = 500;
/// Pages of a directory that are looked through.
const PAGES_MAX: usize = 20;

type Words = Vec<CompletionCandidate>;

pub fn paths(current: &OsStr) -> Words {
    let Some(slash) = current.as_bytes().iter().rposition(|byte| *byte == b'/') else {
        // A word without a slash begins the name of a volume, or is no remote path at all.
        let mut words = asked(|context| Box::pin(volume_names(context, current, ":/")));
        if current.is_empty() {
            words.insert(0, CompletionCandidate::new("/"));
        }
        return words;
    };
    let (directory, prefix) = current.as_bytes().split_at(slash + 1);
    asked(|context| Box::pin(entries(context, directory, prefix)))
}

pub fn volumes(current: &OsStr) -> Words {
    asked(|context| Box::pin(volume_names(context, current, "")))
}

/// Snapshots of the volume that a path on the line names, else of the default one.
pub fn snapshots(current: &OsStr) -> Words {
    let words: Vec<OsString> = std::env::args_os().collect();
    let root = root_on(&words);
    asked(|context| Box::pin(snapshot_names(context, root, b"", current.as_bytes())))
}

/// Paths, and behind an `@` the snapshots that a path may be looked at.
pub fn paths_at(current: &OsStr) -> Words {
    let bytes = current.as_bytes();
    match bytes.iter().rposition(|byte| *byte == b'@').filter(|at| !bytes[*at..].contains(&b'/')) {
        None => paths(current),
        Some(at) => {
            let (path, name) = bytes.split_at(at + 1);
            let root = root_of(path);
            asked(|context| Box::pin(snapshot_names(context, root, path, name)))
        }
    }
}

/// `VOLUME:/` of a path, `/` where it names no volume.
fn root_of(path: &[u8]) -> OsString {
    let end = path.windows(2).position(|two| two == b":/").map_or(0, |colon| colon + 1);
    OsString::from_vec([&path[..end], b"/"].concat())
}

fn root_on(words: &[OsString]) -> OsString {
    let named = words.iter().map(|word| word.as_bytes()).find(|word| word.windows(2).any(|two| two == b":/"));
    named.filter(|word| !word.contains(&b'@')).map_or_else(|| "/".into(), root_of)
}

async fn snapshot_names(context: &Context, root: OsString, before: &[u8], prefix: &[u8]) -> Result<Words> {
    let at = context.remote(&root)?;
    let volume = context.volume(&at).await?;
    let all = volume.snapshots().await.map_err(|error| error.named_for(&at))?;
    let names: BTreeSet<Vec<u8>> = all.into_iter().filter(|one| !one.deleting).map(|one| one.name).collect();
    let fitting = names.iter().filter(|name| fits(name, prefix)).take(WORDS_MAX);
    Ok(fitting.map(|name| CompletionCandidate::new(OsString::from_vec([before, name].concat()))).collect())
}

/// Runs a question with its time limit; whatever fails answers with nothing.
fn asked<'a>(ask: impl FnOnce(&'a Context) -> Pin<Box<dyn Future<Output = Result<Words>> + 'a>>) -> Words {
    let Ok(runtime) = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build() else {
        return Words::new();
    };
    let words: Vec<OsString> = std::env::args_os().collect();
    let args = GlobalArgs { cluster: cluster(&words), quiet: true, timeout: WITHIN.as_secs(), ..GlobalArgs::default() };
    // The process ends when it has answered.
    let context: &'a Context = Box::leak(Box::new(Context::new(args)));
    context.only_looks();
    let answer = runtime.block_on(async { tokio::time::timeout(WITHIN, ask(context)).await });
    runtime.shutdown_background();
    answer.ok().and_then(Result::ok).unwrap_or_default()
}

/// The cluster of the options on the line that is completed, or of the environment.
fn cluster(words: &[OsString]) -> Option<String> {
    let text = |word: &OsString| word.to_str().map(str::to_owned);
    let behind = words.iter().position(|word| word == "--cluster").and_then(|at| words.get(at + 1)).and_then(text);
    let joined = || words.iter().filter_map(|word| word.to_str()?.strip_prefix("--cluster=").map(str::to_owned)).next();
    behind.or_else(joined).or_else(|| std::env::var("CAIRN_CLUSTER").ok())
}

async fn volume_names(context: &Context, current: &OsStr, end: &str) -> Result<Words> {
    let view = context.client().await?.view();
    let volumes = view.volumes.values().filter(|volume| !volume.deleted);
    let names = volumes.map(|volume| &volume.name).filter(|name| name.as_bytes().starts_with(current.as_bytes()));
    Ok(names.take(WORDS_MAX).map(|name| CompletionCandidate::new(format!("{name}{end}"))).collect())
}

async fn entries(context: &Context, directory: &[u8], prefix: &[u8]) -> Result<Words> {
    let found = find(context, context.remote(OsStr::from_bytes(directory))?, true).await?;
    let mut pages = Pages::new(&found.volume, found.attributes.inode, &found.at.path);
    let mut words = Words::new();
    for _ in 0..PAGES_MAX {
        let Some(page) = pages.next().await? else { break };
        for entry in page.into_iter().filter(|entry| fits(&entry.name, prefix)) {
            let is_directory = mode::is_directory(attributes_of(&found.volume, &entry).await?.mode);
            let end: &[u8] = if is_directory { b"/" } else { b"" };
            words.push(CompletionCandidate::new(OsString::from_vec([directory, &entry.name, end].concat())));
            if words.len() >= WORDS_MAX {
                return Ok(words);
            }
        }
    }
    Ok(words)
}

/// Names with a dot are for those who type it; names that a shell would take apart are left to be quoted by hand.
fn fits(name: &[u8], prefix: &[u8]) -> bool {
    let plain = |byte: &u8| !(byte.is_ascii_control() || b" '\"\\$`&|;<>()*?[]!{}#~".contains(byte));
    name.starts_with(prefix) && name.iter().all(plain) && (!prefix.is_empty() || !name.starts_with(b"."))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tab key would look into another cluster than the command does.
    #[test]
    fn the_cluster_of_the_line_is_asked() {
        let line = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert_eq!(cluster(&line("cairn -- cairn --cluster h:1 fs ls /")).as_deref(), Some("h:1"));
        assert_eq!(cluster(&line("cairn -- cairn fs ls --cluster=h:2 /")).as_deref(), Some("h:2"));
    }

    /// Snapshots of another volume would be offered than the command then looks at.
    #[test]
    fn the_volume_of_a_path_is_asked() {
        for (path, root) in [("/a/b@", "/"), ("v:/a@", "v:/"), ("v:/a:/b@", "v:/")] {
            assert_eq!(root_of(path.as_bytes()), root, "{path}");
        }
        let line = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert_eq!(root_on(&line("cairn -- cairn fs snapshot delete mon v:/x")), "v:/");
        assert_eq!(root_on(&line("cairn -- cairn fs snapshot delete mon")), "/");
    }

    /// What is completed would be another name, or several words, for the shell.
    #[test]
    fn names_that_need_quotes_are_not_offered() {
        assert!(fits(b"plain-1.txt", b"pl") && fits(b".x", b"."));
        assert!(!fits(b"two words", b"t") && !fits(b"a$b", b"") && !fits(b".x", b"") && !fits(b"b", b"a"));
    }
}
