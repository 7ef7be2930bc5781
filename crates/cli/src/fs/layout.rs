//! `cairn fs layout get|set`: how new files of a directory are stored, and how a file is.
mod convert;
mod encode;

use crate::context::Context;
use crate::entry::{layout_text, stage_of, staged_text};
use crate::error::{CliError, Result};
use crate::mode::is_regular;
use crate::output::put_name;
use crate::remote::{Found, NamedFor, expand_all};
use crate::report::Done;
use cairn_client::changes::SetAttributes;
use cairn_client::{ClientError, RemotePath};
use cairn_types::{ErrorCode, Layout, PgClass};
use clap::{Args, Subcommand};
use convert::{CancelArgs, ConvertArgs, JobsArgs};
use encode::{EncodeArgs, racks_text};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::ffi::OsString;

#[derive(Args, Debug)]
pub struct LayoutArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Show the layouts of files and directories
    Get {
        /// Remote paths or patterns
        #[arg(required = true)]
        paths: Vec<OsString>,
    },
    /// Set what new files of directories get, or that of empty files
    Set {
        /// r1 to r5: so many copies; rs-6-3 and the like: data and parity; r2x8/64k: copies striped over chunks;
        /// r3>rs-6-3@2h: copies that are encoded 2 hours after the last change (24 hours without @)
        layout: String,
        /// Remote directories, or files without contents
        #[arg(required = true)]
        paths: Vec<OsString>,
    },
    /// Give existing files another layout: the servers write their contents anew
    Convert(ConvertArgs),
    /// Encode files with a later scheme (r3>rs-6-3) now, whatever their age
    Encode(EncodeArgs),
    /// Show conversions that are queued, running or ended lately, and what waits to be encoded
    Jobs(JobsArgs),
    /// End conversions
    Cancel(CancelArgs),
}

/// Layouts that people set most, for the tab key: any width and unit can be typed.
pub const LAYOUTS: &[&str] = &[
    "r1",
    "r2",
    "r3",
    "r4",
    "r5",
    "r2x128",
    "r3x128",
    "rs-3-2",
    "rs-4-2",
    "rs-6-2",
    "rs-6-3",
    "rs-8-2",
    "rs-8-3",
    "rs-10-2",
    "rs-10-4",
    "rs-12-4",
    "r3>rs-6-3",
    "r3>rs-10-4",
];

/// Parses a layout that this version can store.
pub fn parse_layout(text: &str) -> Result<Layout> {
    if text.starts_with('/') || text.contains(":/") {
        return Err(CliError::BadLayout(format!(
            "{text:?} is a path and no layout: the layout comes first, then the paths, as in cairn fs layout set r3 {text}"
        )));
    }
    Ok(text.parse()?)
}

/// Has the manager make the placement groups that files of a layout need, so that one that this cluster cannot store is
/// refused before anything has it. A cluster that is full or busy now may store it later.
pub async fn check_fits(context: &Context, at: &RemotePath, volume: u32, layout: Layout) -> Result<()> {
    let client = context.client_of(at.cluster.as_deref()).await?;
    let what = format!("layout {layout}");
    if layout.staged().is_some() {
        // Servers of before would leave its files as copies for ever.
        context.volume(at).await?.stage_status().await.map_err(|error| no_stages(layout, error))?;
    }
    for class in std::iter::once(layout.pg_class()).chain(layout.staged().map(PgClass::from)) {
        match client.ensure_pgs(&what, volume, class).await {
            Err(error) if matches!(error.code(), Some(ErrorCode::NotEnoughDisks | ErrorCode::BadLayout)) => {
                return Err(error.into());
            }
            Err(error) => tracing::debug!(%error, "whether a layout fits is not known"),
            Ok(()) => {}
        }
    }
    Ok(())
}

fn no_stages(layout: Layout, error: ClientError) -> CliError {
    match error.code() {
        Some(ErrorCode::UnknownOperation) => CliError::BadLayout(format!(
            "layout {layout} is encoded later, which servers of this version do and some of this cluster do not: upgrade them \
             (cairn admin status names them), or use {} until then",
            layout.scheme()
        )),
        _ => error.into(),
    }
}

/// The same for what `put` and `cp` shall store below `at`.
pub async fn check_wish(context: &Context, at: &RemotePath, wish: Option<Layout>) -> Result<()> {
    match wish {
        Some(layout) => check_fits(context, at, context.volume(at).await?.id(), layout).await,
        None => Ok(()),
    }
}

impl LayoutArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        match self.action {
            Action::Get { paths } => get(context, &paths).await,
            Action::Set { layout, paths } => set(context, parse_layout(&layout)?, &paths).await,
            Action::Convert(args) => args.run(context).await,
            Action::Encode(args) => args.run(context).await,
            Action::Jobs(args) => args.run(context).await,
            Action::Cancel(args) => args.run(context).await,
        }
    }
}

async fn get(context: &Context, paths: &[OsString]) -> Result<()> {
    let report = context.plain_report();
    let found = expand_all(context, paths, true, &report).await;
    let several = found.len() + report.failed() as usize > 1;
    for found in found {
        report.done(Done::File(0));
        let layout = staged_text(&found.attributes);
        if context.out.is_json() {
            let mut object = Map::new();
            put_name(&mut object, "path", &found.at.path);
            object.insert("volume".into(), json!(found.at.volume));
            object.insert("layout".into(), json!(layout_text(found.attributes.layout)));
            if let Some(staged) = stage_of(&found.attributes) {
                object.insert("stage".into(), json!(staged.stage().name()));
            }
            context.out.json(&Value::Object(object))?;
        } else if several {
            let name = context.out.name(found.at.to_string().as_bytes());
            context.out.line([format!("{layout}  ").as_bytes(), &name].concat())?;
        } else {
            context.out.line(layout)?;
        }
    }
    report.finish()
}

async fn set(context: &Context, layout: Layout, paths: &[OsString]) -> Result<()> {
    let report = context.plain_report();
    let mut checked = BTreeSet::new();
    for found in expand_all(context, paths, true, &report).await {
        if checked.insert((found.at.cluster.clone(), found.volume.id())) {
            check_fits(context, &found.at, found.volume.id(), layout).await?;
            if let Some(text) = racks_text(context, &found.at, layout).await? {
                report.warn(&text);
            }
        }
        match set_one(&found, layout).await {
            Ok(()) => report.done(Done::File(0)),
            Err(error) => report.fail(&error),
        }
    }
    report.finish()
}

async fn set_one(found: &Found, layout: Layout) -> Result<()> {
    let a = &found.attributes;
    if is_regular(a.mode) && (a.size > 0 || a.stored_bytes > 0) {
        return Err(CliError::BadLayout(format!(
            "{}: the layout of a file with contents is not set but converted: cairn fs layout convert {layout} {}",
            found.at, found.at
        )));
    }
    let request = SetAttributes { layout: Some(layout.to_bits()), ..SetAttributes::default() };
    found.volume.setattr(a.inode, &found.at.path, request).await.map_err(|error| error.named_for(&found.at))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    /// A layout that cannot be stored would fail later, after data was sent.
    #[test]
    fn only_layouts_that_can_be_stored() {
        assert_eq!(parse_layout("r3").expect("r3"), Layout::replicated(3));
        for text in ["rs-6-3/64k", "r2x128/64k", "rs-12-4/1m", "r3>rs-10-4", "r2>rs-3-2@90m"] {
            assert_eq!(parse_layout(text).expect(text).to_string(), text);
        }
        for text in ["r0", "r6", "x", "rs-7-3", "r3>r2", "r3>rs-6-3@1w"] {
            let error = parse_layout(text).expect_err(text);
            assert_eq!(error.exit(), Exit::BadLayout);
            assert!(error.to_string().contains("r3"), "{error}");
        }
        let swapped = parse_layout("/a").expect_err("a path").to_string();
        assert!(swapped.contains("the layout comes first") && !swapped.contains("size"), "{swapped}");
    }
}
