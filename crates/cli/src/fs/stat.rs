//! `cairn fs stat`: every attribute of a path.
use crate::context::Context;
use crate::entry::{entry_json, layout_text, raw_bytes};
use crate::error::Result;
use crate::human;
use crate::mode::{self, mode_text, type_name};
use crate::owner::{group_name, user_name};
use crate::remote::{Found, expand_all};
use crate::report::Done;
use clap::Args;
use serde_json::json;
use std::ffi::OsString;

#[derive(Args, Debug)]
pub struct StatArgs {
    /// Remote paths or patterns
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// Of what symbolic links point at
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Where the contents are: extents, placement groups, chunks
    #[arg(short, long)]
    extents: bool,
}

impl StatArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        let report = context.plain_report();
        for found in expand_all(context, &self.paths, self.dereference, &report).await {
            match self.print(context, &found).await {
                Ok(()) => report.done(Done::File(0)),
                Err(error) if error.is_fatal() => return Err(error),
                Err(error) => report.fail(&error),
            }
        }
        report.finish()
    }

    async fn print(&self, context: &Context, found: &Found) -> Result<()> {
        let a = &found.attributes;
        let link = match mode::is_symlink(a.mode) {
            true => Some(found.volume.readlink_inode(a.inode, &found.at.path).await?),
            false => None,
        };
        let extents = match self.extents && mode::is_regular(a.mode) {
            true => Some(found.volume.all_extents(a.inode).await?),
            false => None,
        };
        if context.out.is_json() {
            let mut value = entry_json(&found.at, a, link.as_deref());
            if let Some(extents) = &extents {
                let one = |e: &cairn_wire::common::Extent| {
                    json!({ "file_offset": e.file_offset, "length": e.length, "pg": e.pg, "index": e.index,
                            "chunk_offset": e.chunk_offset })
                };
                value["extents"] = extents.iter().map(one).collect();
            }
            return context.out.json(&value);
        }
        let mut path = context.out.name(found.at.to_string().as_bytes());
        if let Some(link) = link {
            path.extend_from_slice(b" -> ");
            path.extend(context.out.name(&link));
        }
        context.out.line([b"path      ".as_slice(), &path].concat())?;
        let time = |name: &str, ns: u64| format!("{name:<9} {}", human::utc_time(ns));
        let mut lines = vec![
            format!("type      {}", type_name(a.mode)),
            format!("size      {} ({} in extents, {} on disks)", a.size, a.stored_bytes, raw_bytes(a)),
            format!("layout    {}", layout_text(a.layout)),
            format!("mode      {:04o} {}", a.mode & 0o7777, mode_text(a.mode)),
            format!("owner     {} {} : {} {}", a.uid, user_name(a.uid), a.gid, group_name(a.gid)),
            format!(
                "inode     {} (links {}, generation {}, data version {})",
                a.inode, a.nlink, a.generation, a.data_version
            ),
        ];
        lines.extend([
            time("accessed", a.atime_ns),
            time("modified", a.mtime_ns),
            time("changed", a.ctime_ns),
            time("made", a.btime_ns),
        ]);
        for extent in extents.unwrap_or_default() {
            let end = extent.file_offset + extent.length;
            lines.push(format!(
                "extent    {}..{end} in pg{}/c{} at {}",
                extent.file_offset, extent.pg, extent.index, extent.chunk_offset
            ));
        }
        lines.iter().try_for_each(|line| context.out.line(line))
    }
}
