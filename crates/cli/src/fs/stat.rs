//! `cairn fs stat`: every attribute of a path, and how safe its contents are.
use crate::context::Context;
use crate::entry::{entry_json, layout_text, raw_bytes, stage_of};
use crate::error::Result;
use crate::fs::read_flags::StaleFlags;
use crate::human;
use crate::mode::{self, mode_text, type_name};
use crate::owner::{group_name, user_name};
use crate::redundancy::{Look, Redundancy, crowds};
use crate::remote::{Found, expand_all};
use crate::report::Done;
use cairn_client::Volume;
use cairn_client::attributes::Attributes;
use cairn_client::extent::Extent;
use cairn_types::{ByteCount, ExtentKind, Stage};
use clap::Args;
use serde_json::{Value, json};
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
    #[command(flatten)]
    stale: StaleFlags,
}

/// Where the bytes of a file are, and how safe.
pub(super) struct Contents {
    extents: Vec<Extent>,
    pub(super) redundancy: Redundancy,
    /// The fullest failure domain of its weakest group.
    crowd: Option<String>,
}

impl Contents {
    async fn fetch(context: &Context, found: &Found) -> Result<Contents> {
        let mut look = Look::new(context, &found.at).await?;
        Contents::look_up(&mut look, &found.volume, &found.attributes).await
    }

    pub(super) async fn look_up(look: &mut Look, volume: &Volume, a: &Attributes) -> Result<Contents> {
        let (mut extents, mut sets) = (Vec::<Extent>::new(), Vec::new());
        loop {
            let from = extents.last().map_or(0, Extent::file_end);
            let page = volume.extents_page(a.inode, from, u64::MAX - from).await?;
            let end = page.end || page.extents.is_empty();
            extents.extend(page.extents);
            sets.extend(page.sets);
            if end {
                break;
            }
        }
        let redundancy = look.of(a.layout, &extents, &sets).await;
        let weakest = redundancy.weakest.and_then(|pg| look.view.pgs.get(&pg));
        let crowd = weakest.and_then(|pg| crowds(&look.view, pg).first().map(|crowd| crowd.text(pg.scheme)));
        Ok(Contents { extents, redundancy, crowd })
    }
}

fn extents_text(count: usize) -> String {
    match count {
        0 => "extents".to_owned(),
        1 => "1 extent".to_owned(),
        count => format!("{count} extents"),
    }
}

fn kind_name(extent: &Extent) -> &'static str {
    match extent.kind {
        Some(ExtentKind::Plain) => "plain",
        Some(ExtentKind::Erasure(_)) => "erasure",
        Some(ExtentKind::Set(_)) => "set",
        None => "unknown",
    }
}

fn kind_text(extent: &Extent) -> String {
    match extent.kind.and_then(ExtentKind::stripe) {
        Some(stripe) if stripe.is_whole_shards() => {
            format!(", erasure, in shard {} of {}", stripe.locate(extent.chunk_offset).0, stripe.columns())
        }
        Some(stripe) => {
            format!(
                ", {} over {} columns in units of {}",
                kind_name(extent),
                stripe.columns(),
                ByteCount(stripe.unit())
            )
        }
        None => String::new(),
    }
}

fn extent_json(e: &Extent) -> Value {
    let stripe = e.kind.and_then(ExtentKind::stripe);
    json!({ "file_offset": e.file_offset, "length": e.length, "pg": e.chunk.pg.0, "index": e.chunk.index,
            "chunk_offset": e.chunk_offset, "kind": kind_name(e), "unit": stripe.map(|s| s.unit()) })
}

fn put_redundancy(value: &mut Value, r: &Redundancy) {
    value["raw_bytes"] = json!(r.raw);
    value["chunks"] = json!(r.chunks);
    value["shards_present"] = json!(r.present);
    value["shards_missing"] = json!(r.missing);
    value["bad_blocks"] = json!(r.bad_blocks);
    value["silent_nodes"] = json!(r.silent);
    value["losses_survived"] = json!(r.losses);
    value["readable"] = json!(r.unreadable.is_none());
}

fn shards_text(a: &Attributes) -> Option<String> {
    (a.shards > 0).then(|| format!("shards    {}, to which new names go", a.shards))
}

/// How far a file with a later scheme is.
fn stage_text(a: &Attributes) -> Option<String> {
    let layout = stage_of(a)?;
    let (after, scheme) = (layout.stage_after(), layout.staged()?);
    let changed = a.ctime_ns.max(a.mtime_ns);
    let from = || human::utc_time((changed as u64).saturating_add(after.duration().as_nanos() as u64));
    let text = match layout.stage() {
        Stage::Copies if a.stored_bytes == 0 => {
            format!("copies; what is written is encoded as {scheme} after {after} without a change")
        }
        Stage::Copies => {
            format!("copies, to be encoded as {scheme} from {} on (after {after} without a change)", from())
        }
        Stage::Encoded => format!("encoded as {scheme}"),
        Stage::Changed => format!("encoded as {scheme}, and written since; looked at again from {} on", from()),
        Stage::Kept => format!("stays copies: {scheme} would not take a tenth less, or clones share most of it"),
    };
    Some(format!("stage     {text}"))
}

impl StatArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        self.stale.apply(context);
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
        let contents = match mode::is_regular(a.mode) {
            true => Some(Contents::fetch(context, found).await?),
            false => None,
        };
        let partition = found.volume.partition_of(a.inode).await?;
        let extents = contents.as_ref().filter(|_| self.extents).map(|contents| &contents.extents);
        if context.out.is_json() {
            let mut value = entry_json(&found.at, a, link.as_deref());
            value["partition"] = json!(partition);
            if let Some(Contents { redundancy, extents, .. }) = &contents {
                put_redundancy(&mut value, redundancy);
                value["extent_count"] = extents.len().into();
            }
            if let Some(extents) = extents {
                value["extents"] = extents.iter().map(extent_json).collect();
            }
            return context.out.json(&value);
        }
        let mut path = context.out.name(found.at.to_string().as_bytes());
        if let Some(link) = link {
            path.extend_from_slice(b" -> ");
            path.extend(context.out.name(&link));
        }
        context.out.line([b"path      ".as_slice(), &path].concat())?;
        let time = |name: &str, ns: i64| format!("{name:<9} {}", human::utc_time(ns as u64));
        let raw = contents.as_ref().map_or_else(|| raw_bytes(a), |contents| contents.redundancy.raw);
        let in_extents = extents_text(contents.as_ref().map_or(0, |contents| contents.extents.len()));
        let mut lines = vec![
            format!("type      {}", type_name(a.mode)),
            format!("size      {} ({} in {in_extents}, {raw} on disks)", a.size, a.stored_bytes),
            format!("layout    {}", layout_text(a.layout)),
        ];
        lines.extend(stage_text(a).into_iter().chain(shards_text(a)));
        if let Some(contents) = &contents {
            lines.push(format!("stored    {}", contents.redundancy.text()));
            lines.extend(contents.crowd.iter().map(|crowd| format!("domains   {crowd}")));
        }
        lines.extend([
            format!("mode      {:04o} {}", a.mode & 0o7777, mode_text(a.mode)),
            format!("owner     {} {} : {} {}", a.uid, user_name(a.uid), a.gid, group_name(a.gid)),
            format!(
                "inode     {} in partition p{partition} (links {}, generation {}, data version {})",
                a.inode, a.nlink, a.generation, a.data_version
            ),
            time("accessed", a.atime_ns),
            time("modified", a.mtime_ns),
            time("changed", a.ctime_ns),
            time("made", a.btime_ns),
        ]);
        for extent in extents.into_iter().flatten() {
            let end = extent.file_end();
            lines.push(format!(
                "extent    {}..{end} in pg{}/c{} at {}{}",
                extent.file_offset,
                extent.chunk.pg.0,
                extent.chunk.index,
                extent.chunk_offset,
                kind_text(extent)
            ));
        }
        lines.iter().try_for_each(|line| context.out.line(line))
    }
}
