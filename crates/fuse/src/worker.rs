//! The process that serves a mount: it has the connections to the cluster, the caches and the data under way.
//!
//! It gets the connection to the kernel from its supervisor, and opens again what was open before. If the supervisor is
//! gone it goes on, until the mount is unmounted.
mod exports;
mod sessions;

use crate::device::Device;
use crate::failure::{Failure, Kind, Result};
use crate::lanes::Lanes;
use crate::link;
use crate::memory;
use crate::open_table::OpenTable;
use crate::queue_file::QueueFile;
use crate::session::handshake::Agreed;
use crate::session::{Readers, Session};
use crate::spec::MountSpec;
use crate::supervisor::messages::{Ask, FromWorker, ToWorker};
use crate::supervisor::start::start_log;
use crate::virtual_dir::VirtualDir;
use cairn_client::key::Key;
use cairn_client::{Client, ConnectOptions, Volume};
use cairn_vfs::{Handle, Vfs};
use serde_json::{Value, json};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// First contact gives up after this, if nobody answers at all.
const CONNECT: Duration = Duration::from_secs(5);
/// A later worker tries again after this.
const RETRY: Duration = Duration::from_millis(200);
/// Operations under way get this time to end before a mount is handed over; the next worker does the rest anew.
const DRAIN: Duration = Duration::from_secs(2);
/// A worker that hangs gets this time to write out.
const HUNG_SYNC: Duration = Duration::from_secs(10);
/// Beside the mount's `timeout`, for what is stored before a hand-over, and for a hand-over in all: less than its
/// supervisor waits.
const SETTLE_SLACK: Duration = Duration::from_secs(4);
const HAND_OVER_SLACK: Duration = Duration::from_secs(12);
/// What could not be written at the end of a mount is tried again after this.
const WRITE_AGAIN: Duration = Duration::from_secs(2);
/// Messages of the supervisor that wait.
const MESSAGES_MAX: usize = 4;
/// Connections of each lane to a data node.
const BULK_CONNECTIONS: usize = 1;
/// Threads of a mount that was not told how many.
const THREADS: usize = 4;
const THREADS_MIN: usize = 2;

/// The process of the hidden subcommand.
pub fn main() -> Result<()> {
    let io = |error: std::io::Error| Failure::io("the socket to the supervisor", &error);
    let socket = StdStream::from(std::io::stdin().as_fd().try_clone_to_owned().map_err(io)?);
    socket.set_nonblocking(true).map_err(io)?;
    let queues = queues().map_err(|error| Failure::io("the memory of led directories", &error))?;
    memory::begin();
    // Operations have runtimes of their own; this one is for what goes on behind them.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::io("starting a runtime", &error))?;
    let outcome = runtime.block_on(async move {
        let (reader, mut writer) = UnixStream::from_std(socket).map_err(io)?.into_split();
        let outcome = serve(reader, &mut writer, queues).await;
        if let Err(failure) = &outcome {
            let _may_be_gone = link::send(&mut writer, &FromWorker::Failed(failure.clone())).await;
        }
        outcome
    });
    // Tasks that wait for servers are not waited for.
    runtime.shutdown_background();
    outcome
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(THREADS, usize::from).clamp(THREADS_MIN, THREADS)
}

/// What the supervisor gave as standard output, which is none from then on.
fn queues() -> std::io::Result<Option<QueueFile>> {
    let queues = QueueFile::open(std::io::stdout().as_fd().try_clone_to_owned()?)?;
    rustix::stdio::dup2_stdout(std::io::stderr())?;
    Ok(queues)
}

async fn serve(mut reader: OwnedReadHalf, writer: &mut OwnedWriteHalf, queues: Option<QueueFile>) -> Result<()> {
    let io = |error: std::io::Error| Failure::io("the socket to the supervisor", &error);
    let Some(ToWorker::Hello { spec, first }) = link::receive(&mut reader).await.map_err(io)? else {
        return Err(Failure::other("this command is started by the supervisor of a mount"));
    };
    start_log(&spec)?;
    tokio::spawn(memory::give_back());
    let lanes = Lanes::start(spec.options.threads.unwrap_or_else(cores));
    let lanes = lanes.map_err(|error| Failure::io("starting threads", &error))?;
    let (client, volume, root) = reach(&spec, &lanes, first).await?;
    link::send(writer, &FromWorker::Ready).await.map_err(io)?;
    let Some(message) = link::receive(&mut reader).await.map_err(io)? else { return Ok(()) };
    let ToWorker::Serve { agreed } = message else { return Err(Failure::other("asked before it serves")) };
    let mut descriptors = link::take_descriptors(reader.as_ref(), 2).await.map_err(io)?;
    let (Some(table), Some(device)) = (descriptors.pop(), descriptors.pop()) else {
        return Err(Failure::other("the supervisor sent no descriptors"));
    };
    let table = OpenTable::map(table).map_err(|error| Failure::io("the table of open files", &error))?;
    let mut options = spec.options.vfs();
    if options.lease_new && queues.is_none() {
        tracing::warn!("the mount's supervisor has no memory for what is done in directories that are led; none is");
        options.lease_new = false;
    }
    let vfs = Vfs::new(client, volume, options);
    if spec.options.lease_default && vfs.options().lease_new {
        exports::heed(&vfs);
    }
    let memory = (table, queues);
    let worker = Worker::start(&spec, agreed, Device::new(device), memory, vfs, (root, &lanes)).await?;
    link::send(writer, &worker.serving()).await.map_err(io)?;
    worker.go_on(messages(reader), writer).await
}

/// What the supervisor says. It is received apart, so that nothing is lost when something else comes first; closed when
/// the supervisor is gone.
fn messages(mut reader: OwnedReadHalf) -> mpsc::Receiver<ToWorker> {
    let (sender, messages) = mpsc::channel(MESSAGES_MAX);
    tokio::spawn(async move {
        while let Ok(Some(message)) = link::receive(&mut reader).await {
            if sender.send(message).await.is_err() {
                return;
            }
        }
    });
    messages
}

/// Connects and finds the mount's root. The first worker fails at once, so that nothing is mounted that cannot work;
/// later ones try for ever.
async fn reach(spec: &MountSpec, lanes: &Lanes, first: bool) -> Result<(Client, Volume, u64)> {
    loop {
        match try_reach(spec, lanes).await {
            Ok(found) => return Ok(found),
            Err(failure) if first => return Err(failure),
            Err(failure) => tracing::warn!(%failure, "the cluster is not reached; trying again"),
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn try_reach(spec: &MountSpec, lanes: &Lanes) -> Result<(Client, Volume, u64)> {
    let mut options = ConnectOptions::new(spec.cluster.clone());
    options.runtimes = lanes.handles().to_vec();
    options.bulk_connections = BULK_CONNECTIONS;
    options.host.clone_from(&spec.options.host);
    options.rack.clone_from(&spec.options.rack);
    options.patience = Duration::from_secs_f64(spec.options.timeout);
    options.connect_patience = CONNECT.min(options.patience);
    options.key = Key::named(spec.options.key.clone());
    let client = Client::connect(options).await?;
    let volume = client.volume(&spec.volume).await?;
    let root = volume.stat(&spec.path, true).await?;
    if root.mode & libc::S_IFMT != libc::S_IFDIR {
        let path = String::from_utf8_lossy(&spec.path);
        return Err(Failure::new(Kind::WrongKind, format!("{path} is no directory, and only a directory is mounted")));
    }
    Ok((client, volume, root.inode))
}

struct Worker {
    session: Arc<Session>,
    readers: Option<Readers>,
    ended: watch::Receiver<bool>,
    /// A thread stood still for longer than operations may take.
    hangs: watch::Receiver<bool>,
    restored: usize,
    lost: usize,
    unsynced: usize,
}

impl Worker {
    async fn start(
        spec: &MountSpec,
        agreed: Agreed,
        device: Device,
        (table, queues): (OpenTable, Option<QueueFile>),
        vfs: Vfs,
        (root, lanes): (u64, &Lanes),
    ) -> Result<Worker> {
        if let Some(suspects) = table.suspects() {
            suspects.take_over();
        }
        let dead = sessions::Dead::begin(&vfs, table.session(), queues).await?;
        let left = table.load();
        let (count, unsynced) = (left.len(), left.iter().filter(|left| left.lost).count());
        for state in left.iter().filter(|left| left.lost).map(|left| &left.state) {
            tracing::warn!(inode = state.ino, handle = state.handle, "data that was not synced may be lost");
        }
        let locked: Vec<u64> = left.iter().filter(|left| left.locked).map(|left| left.state.handle).collect();
        let lost = match count {
            0 => Vec::new(),
            _ => vfs.restore(left.into_iter().map(|left| left.state).collect()).await,
        };
        locked.into_iter().for_each(|handle| vfs.lose_locks(Handle(handle)));
        dead.end(&vfs);
        for handle in &lost {
            table.forget(*handle);
        }
        let virtual_dir = spec.options.cairn_dir.then(|| VirtualDir::new(root));
        let invalidations = vfs.invalidations();
        let io = |error: std::io::Error| Failure::io("starting threads", &error);
        let session = Session::new(vfs, device, agreed, root, table, virtual_dir).map_err(io)?;
        sessions::note(&session).await;
        if let Some(invalidations) = invalidations {
            session.feed_notifier(invalidations);
        }
        // Whatever an earlier worker had read and not answered comes again. Before anything is read: what this one had
        // under way would come again, too, and the answer to the first would not be heard.
        if agreed.has(crate::abi::init::HAS_RESEND)
            && let Err(error) = session.device.resend()
        {
            tracing::warn!(%error, "requests of an earlier worker are not handed out again");
        }
        let hangs = session.start_watchdog(lanes.handles()).map_err(io)?;
        let (readers, ended) = Readers::start(&session, lanes.handles()).map_err(io)?;
        let restored = count - lost.len();
        Ok(Worker { session, readers: Some(readers), ended, hangs, restored, lost: lost.len(), unsynced })
    }
    fn serving(&self) -> FromWorker {
        FromWorker::Serving { restored: self.restored, lost: self.lost, unsynced: self.unsynced }
    }

    async fn go_on(mut self, mut messages: mpsc::Receiver<ToWorker>, writer: &mut OwnedWriteHalf) -> Result<()> {
        let (mut supervised, mut is_hung, mut hangs) = (true, false, self.hangs.clone());
        loop {
            let message = tokio::select! {
                Ok(_) = self.ended.wait_for(|ended| *ended) => None,
                Ok(_) = hangs.wait_for(|hangs| *hangs), if supervised => {
                    is_hung = true;
                    None
                }
                message = messages.recv(), if supervised => Some(message),
            };
            if is_hung {
                return Err(self.give_up().await);
            }
            let Some(message) = message else { return self.unmounted(messages, writer).await };
            match message {
                Some(ToWorker::Ask { id, what }) => {
                    supervised = self.tell(id, what, writer).await;
                    if what == Ask::End {
                        return Ok(());
                    }
                    self.session.pulse.supervised.store(supervised, Ordering::Release);
                }
                Some(_) => tracing::warn!("the supervisor said what does not belong here"),
                None => {
                    tracing::error!("the supervisor is gone; the mount goes on without one until it is unmounted");
                    supervised = false;
                    self.session.pulse.supervised.store(false, Ordering::Release);
                }
            }
        }
    }
    /// Answers the supervisor. False: it is gone.
    async fn tell(&mut self, id: u64, what: Ask, writer: &mut OwnedWriteHalf) -> bool {
        let result = self.answer(what).await;
        let serves = self.readers.is_some();
        link::send(writer, &FromWorker::Answer { id, result, serves }).await.is_ok()
    }
    /// Threads hang, and will for ever: as much as still can be is written out before another process takes over.
    async fn give_up(&mut self) -> Failure {
        tracing::error!(
            "a thread of the mount's worker hangs; what can be is written out, and another worker is started"
        );
        match tokio::time::timeout(HUNG_SYNC, self.sync()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "not everything is written out"),
            Err(_) => tracing::error!("not everything is written out: the threads that would do it hang"),
        }
        self.session.abandon();
        self.session.hung_ends();
        Failure::other("a thread hung; the operations that waited for it were answered EIO")
    }
    async fn answer(&mut self, what: Ask) -> Result<Value> {
        match what {
            Ask::Status => Ok(self.session.stats_value()),
            Ask::Sync => self.sync().await.map(|()| Value::Null),
            Ask::HandOver => self.hand_over().await,
            Ask::End => self.shut_down().await.map(|()| Value::Null),
        }
    }
    async fn sync(&self) -> Result<()> {
        self.session.vfs.sync_all().await.map_err(|error| Failure::other(error.text))
    }
    /// Writes out what is left and ends the session, if servers answer in time; its lease ends it otherwise.
    async fn shut_down(&self) -> Result<()> {
        let limit = self.session.vfs.options().timeout;
        match tokio::time::timeout(limit, self.session.vfs.shutdown()).await {
            Ok(ended) => ended.map_err(|error| Failure::other(error.text)),
            Err(_) => Err(Failure::other(format!(
                "the servers did not let the mount end its session within {} s; it ends by itself; see cairn admin status",
                limit.as_secs()
            ))),
        }
    }
    /// Stores everything while requests are still read, and leads no directory any more.
    async fn settle(&self) -> Result<()> {
        let vfs = &self.session.vfs;
        let limit = vfs.options().timeout;
        let until = Instant::now() + limit + SETTLE_SLACK;
        let settled = async {
            // Where nothing waits, only others do, until its session ends.
            if !vfs.end_leading(limit).await && vfs.volume().led_counts().1 > 0 {
                return Err(Failure::new(Kind::Unreachable, "changes in directories that it leads are not stored yet"));
            }
            let until = until.min(Instant::now() + limit);
            let text = || format!("not everything could be stored within {} s", limit.as_secs());
            let synced = tokio::time::timeout_at(until, self.sync()).await;
            synced.unwrap_or_else(|_| Err(Failure::new(Kind::Unreachable, text())))
        };
        let settled = settled.await;
        if settled.is_err() {
            vfs.lead_again();
        }
        settled
    }
    /// Afterwards another worker may read requests; this one keeps its session, which keeps removed files that are
    /// open. What fails before it has stopped to read requests changes nothing.
    async fn hand_over(&mut self) -> Result<Value> {
        let until = Instant::now() + self.session.vfs.options().timeout + HAND_OVER_SLACK;
        self.settle().await?;
        if let Some(readers) = self.readers.take() {
            let stopped = tokio::task::spawn_blocking(move || readers.stop()).await;
            stopped.map_err(|error| Failure::other(format!("stopping to read requests: {error}")))?;
        }
        self.session.drain(DRAIN).await;
        self.session.abandon();
        self.session.hung_ends();
        // What was written since.
        let synced = tokio::time::timeout_at(until, self.sync()).await;
        let synced = synced.unwrap_or_else(|_| Err(Failure::other("not everything could be stored in time")));
        self.session.table.refine(&self.session.vfs.open_state(), synced.is_ok());
        synced?;
        // This one ends its session itself, when the next one serves. One that fails before is killed.
        self.session.table.note_session(0);
        Ok(json!({ "handles": self.session.table.count() }))
    }
    async fn unmounted(mut self, mut messages: mpsc::Receiver<ToWorker>, writer: &mut OwnedWriteHalf) -> Result<()> {
        self.session.drain(DRAIN).await;
        if !self.write_out(&mut messages, writer).await {
            return Ok(());
        }
        if let Err(error) = self.shut_down().await {
            tracing::error!(%error, "writing out at the end of the mount");
        }
        if let Some(readers) = self.readers.take() {
            let _all_have_ended = tokio::task::spawn_blocking(move || readers.stop()).await;
        }
        let _may_be_gone = link::send(writer, &FromWorker::Unmounted).await;
        Ok(())
    }
    /// What programs wrote is not thrown away because servers are away when the mount ends: it is tried until it
    /// succeeds, which the supervisor is told, or until there is no supervisor that could end it. False: it was ended.
    async fn write_out(&mut self, messages: &mut mpsc::Receiver<ToWorker>, writer: &mut OwnedWriteHalf) -> bool {
        let mut told = false;
        loop {
            let message = tokio::select! {
                outcome = self.sync() => match outcome {
                    Ok(()) => return true,
                    Err(failure) => {
                        if !std::mem::replace(&mut told, true) {
                            tracing::error!(%failure, "not everything is written at the end of the mount; it is tried again");
                            let _may_be_gone = link::send(writer, &FromWorker::Failed(failure)).await;
                        }
                        tokio::time::timeout(WRITE_AGAIN, messages.recv()).await.ok()
                    }
                },
                message = messages.recv() => Some(message),
            };
            match message {
                None => {}
                Some(Some(ToWorker::Ask { id, what })) => {
                    let is_heard = self.tell(id, what, writer).await;
                    if what == Ask::End || !is_heard {
                        return what != Ask::End;
                    }
                }
                Some(Some(_)) => tracing::warn!("the supervisor said what does not belong here"),
                Some(None) => return true,
            }
        }
    }
}
