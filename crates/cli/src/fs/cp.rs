//! `cairn fs cp`: copies within a volume, between volumes and between clusters. Within a volume files of the same
//! layout share their bytes; all others pass through this process.
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::fs::layout::check_wish;
use crate::fs::read_flags::HedgeFlags;
use crate::fs::store_flags::{StoreFlags, end};
use crate::mode::{is_regular, is_symlink, type_name};
use crate::remote::{Found, NamedFor, Target, expand_all, remote_target};
use crate::report::{Done, Report};
use crate::transfer::pass::PassFlags;
use crate::transfer::rechunk::Rechunk;
use crate::transfer::remote_dir::{DirShared, RemoteDir};
use crate::transfer::remote_make::{Made, MakeOptions, Meta, make_dir, make_symlink, open_directory};
use crate::transfer::replace::{New, Replacing};
use crate::transfer::{LARGE_IN_FLIGHT, SMALL_IN_FLIGHT, SMALL_MAX, digest};
use crate::walk::{Node, Step, Walk};
use cairn_client::attributes::Attributes;
use cairn_client::{FileReader, FileWriter, RemotePath, Volume};
use clap::Args;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tokio::sync::{Semaphore, mpsc};

/// Smaller files never share bytes; nobody is told of them.
const SHARED_MIN: u64 = 64 << 10;
/// Calls for directories in flight.
const DIRECTORIES_IN_FLIGHT: usize = 16;

#[derive(Args, Debug)]
#[command(override_usage = "cairn fs cp [OPTIONS] <SOURCE>... <TARGET>")]
pub struct CpArgs {
    /// Remote sources (paths or patterns), then the remote target
    #[arg(required = true, num_args = 2.., value_names = ["SOURCE", "TARGET"])]
    paths: Vec<OsString>,
    /// Directories with all that is in them
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    #[command(flatten)]
    flags: StoreFlags,
    #[command(flatten)]
    hedge: HedgeFlags,
    #[command(flatten)]
    pass: PassFlags,
}

/// What the tasks of one copy share.
struct Copy {
    from: Volume,
    /// Source and target are one volume of one cluster.
    within: bool,
    dirs: Arc<DirShared>,
    options: MakeOptions,
    report: Arc<Report>,
    whole: Arc<Whole>,
}

/// Files that would share their bytes with their source if they had its layout.
#[derive(Default)]
struct Whole {
    files: AtomicU64,
    bytes: AtomicU64,
}

impl CpArgs {
    pub async fn run(mut self, context: &Context) -> Result<()> {
        self.hedge.apply(context);
        let Some(last) = self.paths.pop() else { return Ok(()) };
        let options = self.flags.options()?;
        let started = Instant::now();
        let report = Arc::new(context.report("copying", None).passing(self.pass.pass()?));
        let whole = Arc::new(Whole::default());
        let sources = expand_all(context, &self.paths, !self.recursive, &report).await;
        if !sources.is_empty() {
            let target = remote_target(context, &last, sources.len().max(self.paths.len())).await?;
            for source in sources {
                if let Err(error) = self.copy(context, source, &target, options, (&report, &whole)).await {
                    report.fail(&error);
                }
                if report.is_stopped() {
                    break;
                }
            }
        }
        if let Some(text) = whole.text().filter(|_| !context.args.quiet && !context.out.is_json()) {
            report.warn(&text);
        }
        end(context, &report, "copied", started)
    }

    async fn copy(
        &self,
        context: &Context,
        source: Found,
        target: &Target<RemotePath>,
        options: MakeOptions,
        (report, whole): (&Arc<Report>, &Arc<Whole>),
    ) -> Result<()> {
        if source.is_directory() && !self.recursive {
            let text = format!("{} is a directory; cp -r copies it with all that is in it", source.at);
            return Err(CliError::refused(Exit::WrongKind, text));
        }
        let (into, name) = match target {
            Target::Into(directory) => (directory.clone(), source.at.name().to_vec()),
            Target::As(at) => (at.parent(), at.name().to_vec()),
        };
        check_not_into_itself(context, &source, &into, &name)?;
        let within = context.same_volume(&source.at, &into)?;
        check_wish(context, &into, options.layout).await?;
        let (volume, ready) = open_directory(context, &into).await?;
        let (running, mut all_done) = mpsc::channel(1);
        let room = Arc::new(Semaphore::new(DIRECTORIES_IN_FLIGHT));
        let client = context.client_of(into.cluster.as_deref()).await?;
        let replacing = Replacing::new(options.replace, client, volume.clone());
        let dirs = Arc::new(DirShared { volume, report: report.clone(), replacing, room, running });
        let root = RemoteDir::existing(dirs.clone(), into, ready);
        let copy = Arc::new(Copy {
            from: source.volume.clone(),
            within,
            dirs,
            options,
            report: report.clone(),
            whole: whole.clone(),
        });
        let work = async {
            copy.tree(source, root, name).await;
            // Ends when the last task and the last directory to be finished are gone.
            let _none = all_done.recv().await;
        };
        report.or_stopped(work).await;
        Ok(())
    }
}

/// A tree cannot be copied into itself, nor a file onto itself.
pub(super) fn check_not_into_itself(context: &Context, source: &Found, into: &RemotePath, name: &[u8]) -> Result<()> {
    if !context.same_volume(&source.at, into)? {
        return Ok(());
    }
    let to = if name.is_empty() { into.clone() } else { into.join(name) };
    let below = to.path.strip_prefix(source.at.path.as_slice());
    let inside = below.is_some_and(|rest| rest.is_empty() || rest[0] == b'/' || source.at.path == b"/");
    match inside && (source.is_directory() || to.path == source.at.path) {
        true => {
            let text =
                format!("{}: a copy to {to} would be the source or within it; choose a target outside", source.at);
            Err(CliError::refused(Exit::Usage, text))
        }
        false => Ok(()),
    }
}

impl Whole {
    fn text(&self) -> Option<String> {
        let (files, bytes) = (self.files.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed));
        let files = match files {
            0 => return None,
            1 => "1 file was copied in full".to_owned(),
            n => format!("{n} files were copied in full"),
        };
        let size = crate::human::bytes(bytes);
        Some(format!("{files} ({size}): only copies with the layout of their source share its bytes, see --layout"))
    }
}

impl Copy {
    async fn tree(self: Arc<Self>, source: Found, root: Arc<RemoteDir>, name: Vec<u8>) {
        let small = Arc::new(Semaphore::new(SMALL_IN_FLIGHT));
        let large = Arc::new(Semaphore::new(LARGE_IN_FLIGHT));
        let mut walk = Walk::new(&self.from, source.at, source.attributes);
        let mut open: Vec<Arc<RemoteDir>> = Vec::new();
        while let Some(step) = walk.next().await {
            if self.report.is_stopped() {
                return;
            }
            let node = match step {
                Err(error) => {
                    self.report.fail(&error);
                    continue;
                }
                Ok(Step::Leave(_)) => {
                    open.pop();
                    continue;
                }
                Ok(Step::Enter(node)) => node,
            };
            if node.depth > 0 && !self.report.pass().takes(node.at.name(), node.is_directory()) {
                if node.is_directory() {
                    walk.skip();
                }
                continue;
            }
            let above = open.last().unwrap_or(&root).clone();
            let name = if node.depth == 0 { name.clone() } else { node.at.name().to_vec() };
            let copy = self.clone();
            if node.is_directory() && name.is_empty() {
                // The root of a volume: what is in it goes right into the target.
                open.push(above);
            } else if node.is_directory() {
                let dir = RemoteDir::pending(&above, &name);
                open.push(dir.clone());
                let Ok(permit) = self.dirs.room.clone().acquire_owned().await else { return };
                self.report.tasks().spawn(async move {
                    let _permit = permit;
                    make_dir(&copy.dirs, &dir, &meta_of(&node), &copy.options).await;
                });
            } else {
                let room = if node.attributes.size > SMALL_MAX { &large } else { &small };
                let Ok(permit) = room.clone().acquire_owned().await else { return };
                self.report.tasks().spawn(async move {
                    let _permit = permit;
                    copy.entry(&node, &above, &name).await;
                });
            }
        }
    }

    async fn entry(&self, node: &Node, above: &Arc<RemoteDir>, name: &[u8]) {
        let result = match node.attributes.mode {
            mode if is_symlink(mode) => self.symlink(node, above, name).await,
            mode if is_regular(mode) => self.file(node, above, name).await,
            mode => {
                let text =
                    format!("{}: it is a {}, which has no contents to copy; it was left out", node.at, type_name(mode));
                Err(CliError::refused(Exit::WrongKind, text))
            }
        };
        Made::settle(result, &self.report);
    }

    async fn symlink(&self, node: &Node, above: &RemoteDir, name: &[u8]) -> Result<Made> {
        let target = self.from.readlink_inode(node.attributes.inode, &node.at.path).await;
        let target = target.map_err(|e| e.named_for(&node.at))?;
        let at = above.at.join(name);
        make_symlink(&self.dirs, above, &at, &target, &meta_of(node), &self.options).await
    }

    async fn file(&self, node: &Node, above: &RemoteDir, name: &[u8]) -> Result<Made> {
        let Some(ready) = above.ready().await else { return Ok(Made::NoDirectory) };
        let at = above.at.join(name);
        let options = self.options.write_options(&ready, &meta_of(node));
        let other_layout = options.layout.to_bits() != node.attributes.layout;
        let volume = &self.dirs.volume;
        let new = New::File { size: node.attributes.size, mtime_ns: node.attributes.mtime_ns };
        if !self.dirs.replacing.may_store(&ready, &at, new).await? {
            return Ok(Made::Kept);
        }
        let mut writer = volume.write_at(ready.inode, &at.path, options).await.map_err(|e| e.named_for(&at))?;
        // Whoever wants a check wants the bytes to be read.
        if self.within && !self.options.checksum {
            let shared = writer.share(&node.attributes).await.map_err(|e| e.named_for(&at))?;
            if shared {
                self.report.progress().add_bytes(node.attributes.size);
                return self.finish(writer, &at).await.map(|made| match made {
                    Some(_) => Made::Done(Done::File(node.attributes.size)),
                    None => Made::Kept,
                });
            }
        }
        if self.within && !self.options.checksum && other_layout && node.attributes.size >= SHARED_MIN {
            self.whole.files.fetch_add(1, Ordering::Relaxed);
            self.whole.bytes.fetch_add(node.attributes.size, Ordering::Relaxed);
        }
        let mut reader = FileReader::new(&self.from, node.attributes, &node.at.to_string(), 0, u64::MAX);
        let mut rechunk = Rechunk::default();
        let mut sum = digest::Digest::default();
        while let Some(piece) = reader.next().await? {
            if self.options.checksum {
                sum.update(&piece.data);
            }
            self.report.pass().pace(piece.data.len() as u64).await;
            self.report.progress().add_bytes(piece.data.len() as u64);
            let is_last = piece.offset + piece.data.len() as u64 == node.attributes.size;
            let pushed = match piece.hole {
                true => rechunk.hole(&mut writer, piece.data, is_last).await,
                false => rechunk.push(&mut writer, piece.data, is_last).await,
            };
            pushed.map_err(|e| e.named_for(&at))?;
        }
        rechunk.finish(&mut writer).await.map_err(|e| e.named_for(&at))?;
        let Some(made) = self.finish(writer, &at).await? else { return Ok(Made::Kept) };
        if self.options.checksum {
            let reader = FileReader::new(volume, made, &at.to_string(), 0, u64::MAX);
            let (source, copy) = (sum.finish(), digest::of_remote(reader).await?);
            if source != copy {
                let detail = format!("source {source}, copy {copy}");
                return Err(CliError::Mismatch { what: at.to_string(), verb: "copied", detail });
            }
        }
        Ok(Made::Done(Done::File(node.attributes.size)))
    }

    /// The file under its name; `None` if somebody made one there first that is to be kept.
    async fn finish(&self, writer: FileWriter, at: &RemotePath) -> Result<Option<Attributes>> {
        self.dirs.replacing.finish(writer, at, &self.report).await
    }
}

fn meta_of(node: &Node) -> Meta {
    let a = &node.attributes;
    Meta { mode: a.mode & 0o7777, atime_ns: a.atime_ns, mtime_ns: a.mtime_ns, owner: (a.uid, a.gid) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copy that was expected to take no time and no space would take both, and nobody would know why.
    #[test]
    fn copies_in_full_are_said() {
        let whole = Whole::default();
        assert_eq!(whole.text(), None);
        whole.files.store(2, Ordering::Relaxed);
        whole.bytes.store(3 << 30, Ordering::Relaxed);
        let text = whole.text().expect("something was copied");
        assert!(text.starts_with("2 files were copied in full (3.0 GiB)") && text.contains("layout"), "{text}");
    }
}
