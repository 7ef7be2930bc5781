//! Listing directories, in pages; and what a directory and its shards say together.
//!
//! A cookie is the name of an entry in the directory itself; in a shard a slash, the number of the shard, and the name.
//! Names have no slashes, so both are told apart, and each goes on behind its entry whatever came or went.
use super::totals::AT_ONCE;
use super::{READDIR_PAGE, Volume};
use crate::attributes::Attributes;
use crate::encoded_message::Coming;
use crate::error::{ClientError, Result};
use crate::listing::DirPage;
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::meta::*;
use futures_util::stream::{self, StreamExt as _};

/// Where a listing goes on: in the directory, or in one of its shards.
fn place_of(cookie: &[u8]) -> (Option<u8>, &[u8]) {
    match cookie {
        [b'/', shard, name @ ..] => (Some(*shard), name),
        name => (None, name),
    }
}

fn cookie_in(shard: u8, name: &[u8]) -> Vec<u8> {
    [&[b'/', shard], name].concat()
}

/// A page, and where the listing goes on.
type Part = (DirPage, Option<Vec<u8>>);

impl Volume {
    /// A page of a directory after the entry with the cookie `after`. With `attributes`, entries have theirs if the
    /// caller may search the directory, but for those of partitions that do not answer within a moment.
    pub async fn readdir(&self, inode: u64, after: &[u8], attributes: bool) -> Result<DirPage> {
        let mut after = after.to_vec();
        loop {
            let (mut page, next) = self.readdir_part(inode, &after, attributes).await?;
            match next {
                // All of them went meanwhile, or nothing is left there; an empty page would be the end.
                Some(next) if page.entries.is_empty() => after = next,
                next => {
                    page.end = next.is_none();
                    return Ok(page);
                }
            }
        }
    }

    /// A page of the directory itself or of one of its shards, and where it goes on.
    fn readdir_part<'a>(&'a self, inode: u64, after: &'a [u8], attributes: bool) -> Coming<'a, Result<Part>> {
        Box::pin(self.list_part(inode, after, attributes))
    }

    async fn list_part(&self, inode: u64, after: &[u8], attributes: bool) -> Result<Part> {
        let what = format!("directory inode {inode}");
        let (shard, name) = place_of(after);
        let at = match shard {
            None => inode,
            Some(shard) => {
                let found = self.caller.shards_of(inode).await?.get(usize::from(shard)).copied();
                let text = "not a place in this directory";
                found.ok_or_else(|| ClientError::remote(&what, ErrorCode::InvalidArgument, text))?
            }
        };
        let (after, count_max) = (name.to_vec(), READDIR_PAGE);
        let request = |header| ReaddirRequest {
            header: Some(header),
            inode: at,
            after: after.clone(),
            count_max,
            attributes,
            shards: false,
        };
        let page: ReaddirResponse = self.caller.read_by(&what, at, Opcode::Readdir, request).await?;
        let mut page = DirPage::of_wire(page).map_err(|odd| odd.of(&what))?;
        if let Some(shard) = shard {
            page.entries.iter_mut().for_each(|entry| entry.cookie = cookie_in(shard, &entry.cookie));
        }
        let next = match page.entries.last() {
            Some(last) if !page.end => Some(last.cookie.clone()),
            _ => self.place_behind(inode, shard, page.shards > 0).await?,
        };
        if attributes {
            self.complete_page(at, &mut page).await?;
        }
        Ok((page, next))
    }

    /// The beginning of what comes behind the directory itself or one of its shards.
    async fn place_behind(&self, inode: u64, shard: Option<u8>, is_sharded: bool) -> Result<Option<Vec<u8>>> {
        let next = shard.map_or(0, |shard| shard + 1);
        let goes_on = match shard {
            None => is_sharded,
            Some(_) => usize::from(next) < self.caller.shards_of(inode).await?.len(),
        };
        Ok(goes_on.then(|| cookie_in(next, b"")))
    }

    /// What a directory and its shards are together, of one that may have some.
    pub(super) async fn with_shards(&self, mut found: Attributes) -> Result<Attributes> {
        if found.shards == 0 {
            return Ok(found);
        }
        let shards = self.caller.shards_of(found.inode).await?;
        let asked: Vec<_> = shards.iter().map(|shard| self.getattr_itself(*shard)).collect();
        let mut answers = stream::iter(asked).buffer_unordered(AT_ONCE);
        while let Some(answer) = answers.next().await {
            let shard = match answer {
                // It went with its directory.
                Err(error) if error.code() == Some(ErrorCode::Stale) => continue,
                answer => answer?,
            };
            found.size += shard.size;
            found.nlink += shard.nlink.saturating_sub(2);
            found.mtime_ns = found.mtime_ns.max(shard.mtime_ns);
            found.ctime_ns = found.ctime_ns.max(shard.ctime_ns);
            found.generation = found.generation.wrapping_add(shard.generation);
        }
        Ok(found)
    }

    /// Spreads the names of a directory over the partitions of the volume: new ones go to its shards, what is there
    /// stays. The number of shards. Repeated it changes nothing.
    pub async fn shard_directory(&self, path: &[u8]) -> Result<u32> {
        let found = self.stat(path, true).await?;
        if !found.is_directory() {
            return Err(ClientError::remote(
                &super::shown(path),
                ErrorCode::NotDirectory,
                "only directories have shards",
            ));
        }
        let request = |header| ShardDirectoryRequest { header: Some(header), inode: found.inode };
        let what = super::shown(path);
        let answer: ShardDirectoryResponse =
            self.caller.read_by(&what, found.inode, Opcode::ShardDirectory, request).await?;
        Ok(answer.shards)
    }

    /// The inodes of a directory's shards, in the order that [`shard_of`](cairn_types::shard::shard_of) counts them in;
    /// none of one that has not all of them.
    pub async fn shards(&self, directory: u64) -> Result<Vec<u64>> {
        Ok(self.caller.shards_of(directory).await?.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A listing would go on in another shard than it stopped in, or a file be taken for a place.
    #[test]
    fn a_cookie_says_where_it_is() {
        assert_eq!(place_of(b"name"), (None, &b"name"[..]));
        assert_eq!(place_of(b""), (None, &b""[..]));
        for shard in [0, 1, 14] {
            assert_eq!(place_of(&cookie_in(shard, b"name")), (Some(shard), &b"name"[..]));
            assert_eq!(place_of(&cookie_in(shard, b"")), (Some(shard), &b""[..]));
        }
    }
}
