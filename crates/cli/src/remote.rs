//! Remote operands: paths found, patterns expanded, and where a copy or a move goes (the rules of `cp` and `mv`).
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::glob;
use crate::mode;
use cairn_client::attributes::Attributes;
use cairn_client::listing::DirEntry;
use cairn_client::{RemotePath, Volume};
use cairn_types::name::check_name;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// An existing remote file or directory.
#[derive(Clone)]
pub struct Found {
    pub at: RemotePath,
    pub volume: Volume,
    pub attributes: Attributes,
}

impl Found {
    pub fn is_directory(&self) -> bool {
        mode::is_directory(self.attributes.mode)
    }
}

/// Looks a path up. `follow`: a symbolic link at the end is followed.
pub async fn find(context: &Context, at: RemotePath, follow: bool) -> Result<Found> {
    let volume = context.volume(&at).await?;
    let attributes = volume.stat(&at.path, follow).await.map_err(|e| e.named_for(&at))?;
    Ok(Found { at, volume, attributes })
}

/// What an operand of the command line means: the path itself if it exists, else all that match it as a pattern,
/// sorted.
pub async fn expand(context: &Context, text: &OsStr, follow: bool) -> Result<Vec<Found>> {
    let at = context.remote(text)?;
    match find(context, at.clone(), follow).await {
        Err(error) if error.is_not_found() && glob::is_pattern(&at.path) => {}
        result => return result.map(|found| vec![found]),
    }
    let matches = expand_pattern(context, &at, follow).await?;
    if matches.is_empty() {
        let text = format!("{at}: nothing matches this pattern; cairn fs ls {} shows what there is", literal_part(&at));
        return Err(CliError::refused(Exit::NotFound, text));
    }
    Ok(matches)
}

/// Expands all operands; those that fail are reported and left out.
pub async fn expand_all(
    context: &Context,
    texts: &[OsString],
    follow: bool,
    report: &crate::report::Report,
) -> Vec<Found> {
    let mut all = Vec::new();
    for text in texts {
        match expand(context, text, follow).await {
            Ok(found) => all.extend(found),
            Err(error) => report.fail(&error),
        }
        if report.is_stopped() {
            break;
        }
    }
    all
}

async fn expand_pattern(context: &Context, at: &RemotePath, follow: bool) -> Result<Vec<Found>> {
    let root = RemotePath { path: b"/".to_vec(), ..at.clone() };
    let parts: Vec<&[u8]> = at.path.split(|b| *b == b'/').filter(|part| !part.is_empty()).collect();
    let mut level = vec![find(context, root, true).await?];
    for (depth, part) in parts.iter().enumerate() {
        let last = depth + 1 == parts.len();
        let mut next = Vec::new();
        for directory in &level {
            match glob::is_pattern(part) {
                true => match_entries(directory, part, &mut next).await?,
                false => {
                    let entry = directory.at.join(part);
                    match find(context, entry, !last || follow).await {
                        Ok(found) => next.push(found),
                        Err(error) if error.is_not_found() || error.exit() == Exit::WrongKind => {}
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        if !last {
            for found in &mut next {
                // A pattern goes through links to directories as shells do.
                if mode::is_symlink(found.attributes.mode)
                    && let Some(target) = found.volume.try_stat(&found.at.path, true).await?
                {
                    found.attributes = target;
                }
            }
            next.retain(Found::is_directory);
        }
        level = next;
    }
    level.sort_by(|a, b| a.at.path.cmp(&b.at.path));
    Ok(level)
}

async fn match_entries(directory: &Found, pattern: &[u8], out: &mut Vec<Found>) -> Result<()> {
    let mut pages = Pages::new(&directory.volume, directory.attributes.inode, &directory.at.path);
    while let Some(page) = pages.next().await? {
        // As in a walk: what no directory has leads nowhere but out of the target.
        let matches = |entry: &DirEntry| check_name(&entry.name).is_ok() && glob::matches(pattern, &entry.name);
        for entry in page.into_iter().filter(matches) {
            let at = directory.at.join(&entry.name);
            let attributes = attributes_of(&directory.volume, &entry).await?;
            out.push(Found { at, volume: directory.volume.clone(), attributes });
        }
    }
    Ok(())
}

/// Attributes that a page of a directory carried, or asked for.
pub async fn attributes_of(volume: &Volume, entry: &DirEntry) -> Result<Attributes> {
    match entry.attributes {
        Some(attributes) => Ok(attributes),
        None => Ok(volume.getattr(entry.inode).await?),
    }
}

/// The directory above the first pattern of a path.
fn literal_part(at: &RemotePath) -> RemotePath {
    let mut literal = RemotePath { path: b"/".to_vec(), ..at.clone() };
    for part in at.path.split(|b| *b == b'/').filter(|part| !part.is_empty()) {
        if glob::is_pattern(part) {
            break;
        }
        literal = literal.join(part);
    }
    literal
}

/// The entries of a directory, page by page.
pub struct Pages<'a> {
    volume: &'a Volume,
    inode: u64,
    shown_as: String,
    after: Vec<u8>,
    end: bool,
}

impl<'a> Pages<'a> {
    pub fn new(volume: &'a Volume, inode: u64, path: &[u8]) -> Self {
        let shown_as = String::from_utf8_lossy(path).into_owned();
        Self { volume, inode, shown_as, after: Vec::new(), end: false }
    }
    pub async fn next(&mut self) -> Result<Option<Vec<DirEntry>>> {
        if self.end {
            return Ok(None);
        }
        let page =
            self.volume.readdir(self.inode, &self.after, true).await.map_err(|error| error.named(&self.shown_as))?;
        self.end = page.end || page.entries.is_empty();
        if let Some(last) = page.entries.last() {
            self.after.clone_from(&last.cookie);
        }
        Ok(Some(page.entries))
    }
}

/// Where sources go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target<P> {
    /// Each source under its own name in this directory.
    Into(P),
    /// The one source becomes this.
    As(P),
}

/// What is at the target of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetKind {
    Missing,
    Directory,
    Other,
}

/// The rule of `cp` and `mv`: into a directory that exists; else one source becomes the target. A target that is
/// written with a slash at its end, and one for several sources, has to be a directory that exists.
pub fn place<P>(target: P, shown: &str, kind: TargetKind, slash: bool, sources: usize) -> Result<Target<P>> {
    match kind {
        TargetKind::Directory => Ok(Target::Into(target)),
        _ if sources == 1 && !slash => Ok(Target::As(target)),
        TargetKind::Missing => {
            let why = if slash { "the slash at its end says directory" } else { "several sources need one" };
            let text = format!("{shown}: there is no such directory ({why}); make it with mkdir first");
            Err(CliError::refused(Exit::NotFound, text))
        }
        TargetKind::Other => {
            let why = if slash { "the slash at its end says so" } else { "several sources need one" };
            let text = format!("{shown} is not a directory ({why}); name a directory");
            Err(CliError::refused(Exit::WrongKind, text))
        }
    }
}

/// The remote target of a copy or a move of `sources` things.
pub async fn remote_target(context: &Context, text: &OsStr, sources: usize) -> Result<Target<RemotePath>> {
    let at = context.remote(text)?;
    let volume = context.volume(&at).await?;
    let kind = match volume.try_stat(&at.path, true).await.map_err(|e| e.named_for(&at))? {
        None => TargetKind::Missing,
        Some(found) if mode::is_directory(found.mode) => TargetKind::Directory,
        Some(_) => TargetKind::Other,
    };
    let slash = text.as_bytes().ends_with(b"/");
    let shown = at.to_string();
    place(at, &shown, kind, slash, sources)
}

/// Names errors of the library after the operand.
pub trait NamedFor {
    fn named_for(self, at: &RemotePath) -> Self;
}

impl NamedFor for cairn_client::ClientError {
    fn named_for(self, at: &RemotePath) -> Self {
        self.named(&at.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copy would land beside where cp puts it, or replace what it should go into.
    #[test]
    fn targets_follow_the_rules_of_cp() {
        use TargetKind::*;
        for (kind, slash, sources, wanted) in [
            (Directory, false, 1, Ok(Target::Into("t"))),
            (Directory, true, 3, Ok(Target::Into("t"))),
            (Missing, false, 1, Ok(Target::As("t"))),
            (Other, false, 1, Ok(Target::As("t"))),
            (Missing, true, 1, Err(Exit::NotFound)),
            (Missing, false, 2, Err(Exit::NotFound)),
            (Other, true, 1, Err(Exit::WrongKind)),
            (Other, false, 2, Err(Exit::WrongKind)),
        ] {
            let placed = place("t", "t", kind, slash, sources).map_err(|e| e.exit());
            assert_eq!(placed, wanted, "{kind:?} {slash} {sources}");
        }
    }

    #[test]
    fn the_part_without_patterns() {
        let at = RemotePath::parse(b"/a/b*/c").expect("path");
        assert_eq!(literal_part(&at).path, b"/a");
    }
}
