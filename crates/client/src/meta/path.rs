//! Resolution of paths: as many components as possible a call, symbolic links followed by the client.
//!
//! A partition resolves up to the first inode that another one has, of which it knows the number and the type. The
//! client goes on there. Between both the entry may be removed: then the path is walked again from the root.
use super::call::MetaCaller;
use crate::attributes::Attributes;
use crate::error::{ClientError, Result};
use crate::meta::volume::NO_INODE;
use cairn_types::{ErrorCode, InodeId};
use cairn_wire::Opcode;
use cairn_wire::meta::{ResolveRequest, ResolveResponse};
use std::collections::VecDeque;
use std::sync::Arc;

/// Symbolic links followed in one path, as Linux does.
const SYMLINKS_MAX: u32 = 40;

/// Walks of one path, because something in it went while it was walked.
const WALKS_MAX: u32 = 4;

const TYPE_MASK: u32 = 0o170_000;
const TYPE_DIRECTORY: u32 = 0o040_000;
const TYPE_SYMLINK: u32 = 0o120_000;

/// Resolves `path` from the root. `follow`: a symbolic link at the end is followed too.
pub(crate) async fn resolve(caller: &Arc<MetaCaller>, path: &[u8], follow: bool) -> Result<Attributes> {
    walk_again(caller, path, follow, true).await
}

/// The inode of a directory; of what is none as well, with which the caller is refused.
pub(crate) async fn resolve_directory(caller: &Arc<MetaCaller>, path: &[u8]) -> Result<u64> {
    Ok(walk_again(caller, path, true, false).await?.inode)
}

async fn walk_again(caller: &Arc<MetaCaller>, path: &[u8], follow: bool, whole: bool) -> Result<Attributes> {
    let mut walks = 1;
    loop {
        match walk(caller, path, follow, whole).await {
            // It was removed, or replaced, between the answers of two partitions.
            Err(error) if error.code() == Some(ErrorCode::Stale) && walks < WALKS_MAX => walks += 1,
            outcome => return outcome,
        }
    }
}

/// `whole`: all attributes of a directory at the end; else some other partition's may be inode and type alone.
async fn walk(caller: &Arc<MetaCaller>, path: &[u8], follow: bool, whole: bool) -> Result<Attributes> {
    let shown = String::from_utf8_lossy(path).into_owned();
    let mut rest: VecDeque<Vec<u8>> = split(path).map(<[u8]>::to_vec).collect();
    let mut at = InodeId::ROOT.0;
    // The directory in which another partition's inode was found that is gone on at.
    let mut found_in = None;
    // The walk begins in a shard, of this directory.
    let mut shard_of = None;
    let mut links = 0;
    loop {
        let text = rest.iter().map(Vec::as_slice).collect::<Vec<_>>().join(&b'/');
        let request = |header| ResolveRequest {
            header: Some(header),
            start: at,
            path: text.clone(),
            in_shard: shard_of.is_some(),
        };
        let answer = caller.read_by(&shown, at, Opcode::Resolve, request).await;
        let answer: ResolveResponse = answer.map_err(|error| match error.code() {
            Some(ErrorCode::Stale) if found_in.is_some() => ClientError::remote(&shown, ErrorCode::Stale, NO_INODE),
            _ => error,
        })?;
        let attributes = Attributes::of_answer(answer.attributes).map_err(|odd| odd.of(&shown))?;
        let before = rest.len();
        drop_consumed(&mut rest, answer.consumed as usize);
        // What is in a shard is in the directory.
        let answer_parent = shard_of.take().filter(|_| answer.parent == at).unwrap_or(answer.parent);
        if answer.error == u32::from(ErrorCode::Sharded.code())
            && let Some(name) = rest.front()
        {
            at = caller.shard_with(attributes.inode, name).await?;
            shard_of = Some(attributes.inode);
            continue;
        }
        if answer.error == 0 && attributes.is_placeholder() {
            if !whole && rest.is_empty() && attributes.mode & TYPE_MASK == TYPE_DIRECTORY {
                return Ok(attributes);
            }
            if attributes.inode == at {
                return Err(ClientError::protocol(&shown, "a partition does not know its own inode"));
            }
            found_in = Some(answer_parent);
            at = attributes.inode;
            continue;
        }
        if found_in.is_some() && rest.is_empty() && answer.error == 0 && attributes.inode == at && attributes.nlink == 0
        {
            return Err(ClientError::remote(&shown, ErrorCode::Stale, "it was removed meanwhile"));
        }
        let parent = found_in.take().filter(|_| attributes.inode == at).unwrap_or(answer_parent);
        if attributes.mode & TYPE_MASK == TYPE_SYMLINK && (follow || !rest.is_empty()) {
            links += 1;
            if links > SYMLINKS_MAX {
                let text = "more than 40 symbolic links; two of them may point at each other";
                return Err(ClientError::remote(&shown, ErrorCode::TooManySymlinks, text));
            }
            at = if answer.symlink.first() == Some(&b'/') { InodeId::ROOT.0 } else { parent };
            put_before(&mut rest, &answer.symlink);
            continue;
        }
        if rest.is_empty() && answer.error == 0 {
            return Ok(attributes);
        }
        if answer.error != 0 {
            return Err(component_error(&shown, path, answer.error));
        }
        if rest.len() == before && at == attributes.inode {
            return Err(ClientError::protocol(&shown, "the path was not resolved any further"));
        }
        at = attributes.inode;
    }
}

fn component_error(shown: &str, path: &[u8], code: u32) -> ClientError {
    let code = u16::try_from(code).ok().and_then(ErrorCode::from_code).unwrap_or(ErrorCode::Internal);
    let text = match code {
        ErrorCode::NotFound => format!("no such file or directory; cairn fs ls shows what is in {}", parent_text(path)),
        ErrorCode::NotDirectory => "a part of the path before the last is not a directory".into(),
        ErrorCode::PermissionDenied => "a directory of the path may not be searched by you".into(),
        _ => "the path cannot be resolved".into(),
    };
    ClientError::remote(shown, code, &text)
}

fn parent_text(path: &[u8]) -> String {
    let cut = path.iter().rposition(|b| *b == b'/').unwrap_or(0).max(1).min(path.len());
    String::from_utf8_lossy(&path[..cut]).into_owned()
}

/// The components of a path.
pub(crate) fn split(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|b| *b == b'/').filter(|part| !part.is_empty() && *part != b".")
}

/// The components of a link's target come first.
fn put_before(rest: &mut VecDeque<Vec<u8>>, target: &[u8]) {
    for part in split(target).collect::<Vec<_>>().into_iter().rev() {
        rest.push_front(part.to_vec());
    }
}

/// Removes the components that lie in the first `consumed` bytes of the joined path.
fn drop_consumed(rest: &mut VecDeque<Vec<u8>>, consumed: usize) {
    let mut left = consumed;
    while let Some(front) = rest.front() {
        if left < front.len() {
            break;
        }
        left = (left - front.len()).saturating_sub(1);
        rest.pop_front();
        if left == 0 {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consumed_bytes_are_whole_components() {
        for (consumed, left) in [(0, 3), (2, 2), (3, 2), (5, 1), (6, 1), (9, 0)] {
            let mut rest: VecDeque<Vec<u8>> = split(b"ab/cd/efg").map(<[u8]>::to_vec).collect();
            drop_consumed(&mut rest, consumed);
            assert_eq!(rest.len(), left, "{consumed}");
        }
    }
}
