//! Sharded directories: where the names of a directory are that are not in the directory itself.
//!
//! A directory that has shards answers `Sharded` to whoever asks for a name that it does not have: the name is in the
//! shard that [`shard_of`] says, or nowhere. The directory is asked first each time, as it may have names of the time
//! before; it never gets new ones, so what it does not have now it will not have later. The list of its shards never
//! changes and is remembered.
use super::call::MetaCaller;
use super::route::Mutation;
use crate::error::{ClientError, Result};
use cairn_types::ErrorCode;
use cairn_types::shard::shard_of;
use cairn_wire::Opcode;
use cairn_wire::meta::*;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Directories whose shards are remembered.
const KNOWN_MAX: usize = 4096;

/// The shards of directories that have all of them.
#[derive(Default)]
pub(super) struct KnownShards {
    lists: Mutex<BTreeMap<u64, Arc<[u64]>>>,
}

impl KnownShards {
    fn of(&self, directory: u64) -> Option<Arc<[u64]>> {
        self.lists.lock().get(&directory).cloned()
    }

    fn learn(&self, directory: u64, shards: &Arc<[u64]>) {
        let mut lists = self.lists.lock();
        if lists.len() >= KNOWN_MAX {
            lists.clear();
        }
        lists.insert(directory, shards.clone());
    }
}

/// A request that names entries of directories.
pub(crate) trait Places {
    /// Each directory with the name in it; the first one is that by which the request is routed.
    fn places(&mut self) -> Vec<(&mut u64, &[u8])> {
        Vec::new()
    }
}

macro_rules! in_one_directory {
    ($($request:ident)*) => { $(
        impl Places for $request {
            fn places(&mut self) -> Vec<(&mut u64, &[u8])> {
                vec![(&mut self.parent, &self.name)]
            }
        }
    )* };
}

macro_rules! by_inode {
    ($($request:ident)*) => { $( impl Places for $request {} )* };
}

in_one_directory! {
    MkdirRequest CreateRequest SymlinkRequest LinkRequest UnlinkRequest RmdirRequest RemoveTreeRequest
}

by_inode! {
    CreateUnnamedRequest SetattrRequest SetXattrRequest RemoveXattrRequest PublishRequest PublishAttributesRequest PunchRequest
    OverwriteLeaseRequest CloneRangeRequest SetLockRequest SetQuotaRequest HoldRequest ReleaseRequest DiscardRequest
    NoteDurableRequest OpenAppendRequest PublishAppendRequest CreateSnapshotRequest DeleteSnapshotRequest RenameSnapshotRequest SetSnapshotScheduleRequest
}

impl Places for RenameRequest {
    fn places(&mut self) -> Vec<(&mut u64, &[u8])> {
        vec![(&mut self.parent, &self.name), (&mut self.new_parent, &self.new_name)]
    }
}

impl MetaCaller {
    /// The shards of a directory, in their order; none if it has not all of them.
    pub(crate) async fn shards_of(&self, directory: u64) -> Result<Arc<[u64]>> {
        if let Some(known) = self.shared.shards.of(directory) {
            return Ok(known);
        }
        let what = format!("directory inode {directory}");
        let getattr = |header| GetattrRequest { header: Some(header), inode: directory };
        let found: AttributesResponse = self.read_by(&what, directory, Opcode::Getattr, getattr).await?;
        let count = found.attributes.map_or(0, |found| found.shards as usize);
        if count == 0 {
            return Ok(Arc::from([]));
        }
        let list =
            |header| ReaddirRequest { header: Some(header), inode: directory, shards: true, ..Default::default() };
        let listed: ReaddirResponse = self.read_by(&what, directory, Opcode::Readdir, list).await?;
        let shards: Arc<[u64]> = listed.entries.iter().map(|entry| entry.inode).collect();
        if shards.len() != count {
            let text = format!(
                "it says that it has {count} shards and lists {}; cairn admin fsck shows what is wrong",
                shards.len()
            );
            return Err(ClientError::remote(&what, ErrorCode::Internal, &text));
        }
        self.shared.shards.learn(directory, &shards);
        Ok(shards)
    }

    /// The shard that would have a name, of a directory that said that it is sharded.
    pub(crate) async fn shard_with(&self, directory: u64, name: &[u8]) -> Result<u64> {
        let shards = self.shards_of(directory).await?;
        let shard = shards.get(shard_of(name, shards.len())).copied();
        shard.ok_or_else(|| {
            ClientError::protocol(&format!("directory inode {directory}"), "it is sharded and has no shards")
        })
    }

    /// Where a name is asked for again, of a directory that answered that it is sharded.
    pub(crate) async fn sent_on<A>(&self, outcome: &Result<A>, directory: u64, name: &[u8]) -> Result<Option<u64>> {
        match outcome {
            Err(error) if error.code() == Some(ErrorCode::Sharded) => self.shard_with(directory, name).await.map(Some),
            _ => Ok(None),
        }
    }

    /// Has a request name shards for directories that do not have its names themselves, as far as directories are known
    /// to have shards, or, with `all`, of all of them. The inode by which it is routed, if that is another one now.
    pub(super) async fn to_shards(&self, request: &mut dyn Mutation, all: bool) -> Result<Option<u64>> {
        let mut places = request.places();
        let before = places.first().map(|(directory, _)| **directory);
        for (directory, name) in &mut places {
            let is_sharded = match self.shared.shards.of(**directory) {
                Some(_) => true,
                None => all && !self.shards_of(**directory).await?.is_empty(),
            };
            if is_sharded && !self.has_name(**directory, name).await? {
                **directory = self.shard_with(**directory, name).await?;
            }
        }
        let now = places.first().map(|(directory, _)| **directory);
        Ok(now.filter(|_| now != before))
    }

    /// Whether a sharded directory has the name itself; also where that cannot be said now, which the request is told
    /// too.
    async fn has_name(&self, directory: u64, name: &[u8]) -> Result<bool> {
        let request = |header| LookupRequest { header: Some(header), parent: directory, name: name.to_vec() };
        let what = String::from_utf8_lossy(name).into_owned();
        let found = self.read_by::<AttributesResponse, _>(&what, directory, Opcode::Lookup, request).await;
        Ok(found.err().is_none_or(|error| error.code() != Some(ErrorCode::Sharded)))
    }
}
