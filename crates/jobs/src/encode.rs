//! Files of a job that encodes: first all that can be encoded together with others, where they lie, then the rest file
//! by file.
//!
//! Bounds: [`FILES_MAX`] files and [`BYTES_MAX`] bytes are waited for at a time, [`FILES_AT_ONCE`] are encoded by
//! themselves. Not here: who encodes files together (`cairn-meta`, and a data node of their rack).
use crate::FILES_AT_ONCE;
use crate::count::Count;
use cairn_client::{EncodedPart, TreeNode, Volume};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::task::JoinSet;

/// More makes longer chunks, and a job that shows later how far it is.
const FILES_MAX: usize = 4096;
const BYTES_MAX: u64 = 16 << 30;

/// Files that were found and are to be encoded.
pub(crate) struct Batch {
    /// In whose name.
    uid: u32,
    found: Vec<TreeNode>,
    bytes: u64,
}

impl Batch {
    pub(crate) fn new(uid: u32) -> Batch {
        Batch { uid, found: Vec::new(), bytes: 0 }
    }

    /// Leaders of partitions encode for whoever asks. What is somebody else's is left to be refused when it is encoded
    /// by itself.
    fn may_encode(&self, node: &TreeNode) -> bool {
        node.attributes.is_regular() && (self.uid == 0 || self.uid == node.attributes.uid)
    }

    /// True: they are enough.
    pub(crate) fn push(&mut self, node: TreeNode) -> bool {
        self.bytes = self.bytes.saturating_add(node.attributes.stored_bytes);
        self.found.push(node);
        self.found.len() >= FILES_MAX || self.bytes >= BYTES_MAX
    }

    /// Encodes all of them; it is empty then.
    pub(crate) async fn encode(&mut self, volume: &Volume, count: &Arc<Count>) {
        let found = std::mem::take(&mut self.found);
        self.bytes = 0;
        let files: Vec<_> = found.iter().filter(|node| self.may_encode(node)).map(|node| node.attributes).collect();
        let mut together = match volume.encode_with_others(&files, &count.control()).await {
            Ok(encoded) => encoded,
            Err(error) => {
                tracing::info!(%error, "files are encoded one by one");
                BTreeMap::new()
            }
        };
        let mut tasks = JoinSet::new();
        for node in found {
            while tasks.len() >= FILES_AT_ONCE {
                tasks.join_next().await;
            }
            if count.is_stopped() {
                break;
            }
            let done = together.remove(&node.attributes.inode);
            tasks.spawn(encode_one(volume.clone(), count.clone(), node, done));
        }
        while tasks.join_next().await.is_some() {}
    }
}

/// `done`: it was encoded together with others.
async fn encode_one(volume: Volume, count: Arc<Count>, node: TreeNode, done: Option<EncodedPart>) {
    let begun = count.begin(&node);
    let part = match done {
        Some(part) => Ok(part),
        None => {
            let rest = volume.encode(node.attributes.inode, &node.path, &begun.control).await;
            rest.map(|part| part.with_others(&node.attributes))
        }
    };
    let outcome = part.and_then(|part| count.encoded(&node.path, part));
    count.end(&begun, &node.path, &outcome);
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_client::attributes::Attributes;

    /// Anybody who may look into a directory could have its owner's files encoded.
    #[test]
    fn only_owners_and_root_have_files_encoded_together() {
        let node = |uid, mode| {
            let attributes = Attributes { uid, mode, ..Attributes::default() };
            TreeNode { path: b"/f".to_vec(), depth: 1, parent: 1, attributes }
        };
        let (file, directory) = (node(1000, 0o100_644), node(1000, 0o040_755));
        let may = |uid| [&file, &directory].map(|node| Batch::new(uid).may_encode(node));
        assert_eq!([may(0), may(1000), may(7)], [[true, false], [true, false], [false, false]]);
    }
}
