//! [`Portrait`]: a tree, read as any client reads it, with a hash of each file's bytes.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use cairn_client::{ClientError, TreeStep, TreeWalk, Volume};

use super::super::checks::read_all;

const TYPE: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;

/// Mode, names, time of the last write, and size and hash of what is in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    mode: u32,
    names: u32,
    mtime_ns: i64,
    pub(super) contents: (u64, u64),
}

/// By path, as it was in the volume.
pub(super) type Portrait = BTreeMap<Vec<u8>, Seen>;

/// Of bytes: their number, and a hash.
pub(super) fn contents(bytes: &[u8]) -> (u64, u64) {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    (bytes.len() as u64, hasher.finish())
}

/// Of all below `root`, which shows what `directory` was.
pub(super) async fn portrait(volume: &Volume, root: &[u8], directory: &str) -> Result<Portrait, ClientError> {
    let mut portrait = Portrait::new();
    let start = volume.stat(root, false).await?;
    let mut walk = TreeWalk::new(volume, root.to_vec(), start);
    while let Some(step) = walk.next().await {
        let TreeStep::Enter(node) = step? else { continue };
        let at = node.attributes;
        let contents = match at.mode & TYPE {
            REGULAR => contents(&read_all(volume, &node.path).await?),
            _ => (0, 0),
        };
        // A directory is as long as its listing, which is compared itself.
        let size = if at.mode & TYPE == DIRECTORY { 0 } else { at.size };
        let seen = Seen { mode: at.mode, names: at.nlink, mtime_ns: at.mtime_ns, contents };
        if size != contents.0 {
            let text = format!("a file of {size} bytes is read as {}", contents.0);
            return Err(ClientError::protocol(&String::from_utf8_lossy(&node.path), text));
        }
        portrait.insert([directory.as_bytes(), &node.path[root.len()..]].concat(), seen);
    }
    Ok(portrait)
}

/// What differs, for people.
pub(super) fn differences(then: &Portrait, now: &Portrait) -> Option<String> {
    let differ = |path: &&Vec<u8>| then.get(*path) != now.get(*path);
    let shown = |path: &Vec<u8>| {
        format!("{}: then {:?}, now {:?}", String::from_utf8_lossy(path), then.get(path), now.get(path))
    };
    let lines: Vec<String> = then.keys().chain(now.keys()).filter(differ).take(5).map(shown).collect();
    (!lines.is_empty()).then(|| lines.join("; "))
}
