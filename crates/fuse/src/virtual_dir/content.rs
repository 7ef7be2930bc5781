//! What the files of `.cairn/` contain.
use super::{About, Node};
use crate::session::Session;
use crate::session::caller;
use crate::session::request::Request;
use cairn_types::Layout;
use cairn_vfs::{Attr, VfsError};
use serde_json::{Value, json};

/// Version of this program.
const VERSION: &str = env!("CARGO_PKG_VERSION");

impl Session {
    pub(super) async fn content(&self, node: Node, request: &Request) -> Result<Vec<u8>, VfsError> {
        let value = match node {
            Node::Root | Node::Dir(..) => return Err(VfsError::new(libc::EISDIR, "a directory")),
            Node::Version => return Ok(format!("{VERSION}\n").into_bytes()),
            Node::Stats => self.stats_value(),
            Node::File(about, ino) => {
                let who = caller::of(&request.header, 0);
                let (attr, _) = self.vfs.getattr(&who, ino, None).await?;
                match about {
                    About::Layout => return Ok(layout_text(&attr).into_bytes()),
                    About::Locations => {
                        // Whoever may not read a file need not know where it is.
                        self.vfs.access(&who, ino, 4).await?;
                        self.locations(&attr).await?
                    }
                }
            }
        };
        let mut text = serde_json::to_vec_pretty(&value).unwrap_or_default();
        text.push(b'\n');
        Ok(text)
    }
    /// Counters of this worker and of its `vfs`.
    pub fn stats_value(&self) -> Value {
        json!({
            "version": VERSION,
            "pid": std::process::id(),
            "in_flight": self.in_flight(),
            "handed_over_handles": self.table.count(),
            "kernel": { "minor": self.agreed.minor, "features": format!("{:#x}", self.agreed.features) },
            "requests": self.stats.report(),
            "vfs": self.vfs.status(),
        })
    }
    async fn locations(&self, attr: &Attr) -> Result<Value, VfsError> {
        let extents = self.vfs.volume().all_extents(attr.ino).await?;
        let view = self.vfs.client().view();
        let rows: Vec<Value> = extents
            .iter()
            .map(|extent| {
                let group = view.pgs.get(&extent.chunk.pg.0);
                let members = group.map(|group| {
                    let member = |(disk, state): &(u32, cairn_types::MemberState)| {
                        json!({ "disk": format!("d{disk}"), "node": view.disk_address(*disk), "state": state.to_string() })
                    };
                    group.members.iter().map(member).collect::<Vec<Value>>()
                });
                json!({
                    "offset": extent.file_offset,
                    "length": extent.length,
                    "chunk": extent.chunk.to_string(),
                    "chunk_offset": extent.chunk_offset,
                    "scheme": group.map(|group| group.scheme.to_string()),
                    "members": members,
                })
            })
            .collect();
        Ok(json!({
            "inode": attr.ino,
            "size": attr.size,
            "layout": layout_text(attr).trim_end(),
            "extents": rows,
        }))
    }
}

fn layout_text(attr: &Attr) -> String {
    match Layout::from_bits(attr.layout) {
        Some(layout) => format!("{layout}\n"),
        None => "inherited\n".into(),
    }
}
