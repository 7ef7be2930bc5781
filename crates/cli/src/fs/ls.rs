//! `cairn fs ls`: directories sorted by name; very large ones are printed as they come, in the order of the server.
use crate::context::Context;
use crate::entry::{LongColumns, entry_json};
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::fs::read_flags::StaleFlags;
use crate::mode;
use crate::remote::{Found, Pages, attributes_of, expand_all};
use crate::report::{Done, Report};
use cairn_client::attributes::Attributes;
use cairn_client::{RemotePath, Volume};
use cairn_types::ErrorCode;
use clap::Args;
use std::ffi::OsString;

/// Entries of a directory that are gathered to be sorted and aligned; beyond, they are printed as they come.
const SORT_MAX: usize = 100_000;

#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub struct LsArgs {
    /// Remote paths or patterns; without any, the root of the volume "default"
    paths: Vec<OsString>,
    /// Mode, links, owner, group, layout, size, time of change
    #[arg(short)]
    long: bool,
    /// Names that begin with a dot too
    #[arg(short)]
    all: bool,
    /// Directories below too
    #[arg(short = 'R')]
    recursive: bool,
    /// Sizes such as 1.5M
    #[arg(short = 'h', long)]
    human: bool,
    /// Directories themselves, not what is in them
    #[arg(short)]
    directory: bool,
    #[command(flatten)]
    stale: StaleFlags,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// A name that leads nowhere: what is wrong with it, and what helps.
fn without_inode(at: &RemotePath) -> String {
    format!(
        "{at}: the name is there, and its inode is not: repeat if others work on it; else cairn admin fsck {} --repair takes \
         the name away",
        at.volume
    )
}

struct Item {
    name: Vec<u8>,
    at: RemotePath,
    attributes: Attributes,
}

impl LsArgs {
    pub async fn run(mut self, context: &Context) -> Result<()> {
        self.stale.apply(context);
        if self.paths.is_empty() {
            self.paths.push("/".into());
        }
        let report = context.walk_report();
        let found = expand_all(context, &self.paths, false, &report).await;
        let headings = self.recursive || found.len() + report.failed() as usize > 1;
        let (mut directories, mut files) = (Vec::new(), Vec::new());
        for mut found in found {
            // As ls does: a link on the command line shows what it points at, unless asked for details.
            if !self.long
                && mode::is_symlink(found.attributes.mode)
                && let Some(target) = found.volume.try_stat(&found.at.path, true).await?
                && mode::is_directory(target.mode)
            {
                found.attributes = target;
            }
            if found.is_directory() && !self.directory { directories.push(found) } else { files.push(found) }
        }
        if let Some(first) = files.first() {
            let volume = first.volume.clone();
            let item = |f: Found| Item { name: f.at.to_string().into_bytes(), at: f.at, attributes: f.attributes };
            self.print(context, &volume, files.into_iter().map(item).collect()).await?;
            report.done(Done::Directory);
        }
        let mut stack: Vec<Found> = directories.into_iter().rev().collect();
        let mut first = true;
        while let Some(directory) = stack.pop() {
            if headings && !context.out.is_json() {
                let gap = if first { "" } else { "\n" };
                context
                    .out
                    .line([gap.as_bytes(), &context.out.name(directory.at.to_string().as_bytes()), b":"].concat())?;
            }
            first = false;
            match self.list(context, &directory, &report).await {
                Ok(below) => {
                    report.done(Done::Directory);
                    stack.extend(below.into_iter().rev());
                }
                Err(error) if error.exit() == Exit::BrokenPipe => return Err(error),
                Err(error) => report.fail(&error),
            }
        }
        report.finish()
    }

    /// More than names.
    fn shows_attributes(&self, context: &Context) -> bool {
        self.long || context.out.is_json()
    }

    /// Prints a directory; returns the directories in it if they are to be listed too.
    async fn list(&self, context: &Context, directory: &Found, report: &Report) -> Result<Vec<Found>> {
        let progress = report.progress();
        let mut below = Vec::new();
        let mut items = Vec::new();
        let mut pages = Pages::new(&directory.volume, directory.attributes.inode, &directory.at.path);
        while let Some(page) = pages.next().await? {
            for entry in page {
                progress.looked();
                if !self.all && entry.name.starts_with(b".") {
                    continue;
                }
                // Names need the type at most, also where the rest cannot be had.
                let bare = Attributes { inode: entry.inode, mode: entry.kind.mode_bits(), ..Attributes::default() };
                let attributes = match self.shows_attributes(context) || entry.attributes.is_some() {
                    true => match attributes_of(&directory.volume, &entry).await {
                        // It is shown without, and said; the others are shown as ever.
                        Err(CliError::Client(error)) if error.code() == Some(ErrorCode::Stale) => {
                            report.fail(&CliError::refused(
                                Exit::Damaged,
                                without_inode(&directory.at.join(&entry.name)),
                            ));
                            bare
                        }
                        attributes => attributes?,
                    },
                    false => bare,
                };
                items.push(Item { at: directory.at.join(&entry.name), name: entry.name, attributes });
            }
            if items.len() >= SORT_MAX {
                progress.rest();
                self.flush(context, directory, &mut items, &mut below).await?;
            }
        }
        items.sort_by(|a, b| a.name.cmp(&b.name));
        progress.rest();
        self.flush(context, directory, &mut items, &mut below).await?;
        Ok(below)
    }

    async fn flush(
        &self,
        context: &Context,
        directory: &Found,
        items: &mut Vec<Item>,
        below: &mut Vec<Found>,
    ) -> Result<()> {
        if self.recursive {
            let is_below = |item: &&Item| mode::is_directory(item.attributes.mode);
            below.extend(items.iter().filter(is_below).map(|item| Found {
                at: item.at.clone(),
                volume: directory.volume.clone(),
                attributes: item.attributes,
            }));
        }
        self.print(context, &directory.volume, std::mem::take(items)).await
    }

    async fn print(&self, context: &Context, volume: &Volume, items: Vec<Item>) -> Result<()> {
        let mut columns = LongColumns::default();
        if self.long {
            items.iter().for_each(|item| columns.widen(&item.attributes, self.human));
        }
        for item in items {
            let is_link = mode::is_symlink(item.attributes.mode);
            let link = match is_link && self.shows_attributes(context) {
                true => Some(volume.readlink_inode(item.attributes.inode, &item.at.path).await?),
                false => None,
            };
            if context.out.is_json() {
                context.out.json(&entry_json(&item.at, &item.attributes, link.as_deref()))?;
                continue;
            }
            let mut line = match self.long {
                true => columns.text(&item.attributes, self.human).into_bytes(),
                false => Vec::new(),
            };
            line.extend(context.out.name(&item.name));
            if let Some(link) = link {
                line.extend_from_slice(b" -> ");
                line.extend(context.out.name(&link));
            }
            context.out.line(line)?;
        }
        Ok(())
    }
}
