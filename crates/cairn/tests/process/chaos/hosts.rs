//! Clients on hosts of their own: threads of this process in the hosts' networks, and mounts.
use super::PATIENCE;
use super::appends::Appender;
use super::blocks::Overwriter;
use super::names::{Caller, Mounted, finish};
use super::records::Recorder;
use super::snapshots::Snapshooter;
use super::versions::{self, Commands, Renamer};
use super::work::Work;
use crate::mount::Mount;
use crate::mount::seeds::Rng;
use cairn_client::{Client, ConnectOptions, Volume};
use cairn_sim::SimRng;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A thread in the network of a host.
pub fn on_host(net: PathBuf, name: &str, work: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    let run = move || {
        let file = File::open(&net).expect("the host's network");
        // SAFETY: an open file; only this thread changes its network.
        let entered = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
        assert_eq!(entered, 0, "{}: {}", net.display(), std::io::Error::last_os_error());
        work();
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(run).expect("a thread")
}

/// What a client needs to know.
#[derive(Clone)]
pub struct Host {
    pub client: usize,
    pub net: PathBuf,
    /// Addresses of the managers.
    pub cluster: String,
    pub seed: u64,
    pub work: Arc<Work>,
}

impl Host {
    fn rng(&self, what: u64) -> Rng {
        Rng::new(self.seed.wrapping_mul(1000).wrapping_add(self.client as u64 * 10).wrapping_add(what))
    }
    /// Runs what needs a volume, on one thread.
    pub fn with_volume<F: Future<Output = ()>>(
        self,
        name: &str,
        work: impl FnOnce(Host, Volume) -> F + Send + 'static,
    ) -> JoinHandle<()> {
        on_host(self.net.clone(), name, move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let managers = self.cluster.split(',').map(str::to_owned).collect();
                let options = ConnectOptions {
                    patience: PATIENCE,
                    host: format!("client{}", self.client + 1),
                    ..ConnectOptions::new(managers)
                };
                // One link may be cut already.
                let client = loop {
                    match Client::connect(options.clone()).await {
                        Ok(client) => break client,
                        Err(error) => println!("client {} does not begin yet: {error}", self.client),
                    }
                };
                let volume = client.volume("default").await.expect("the volume");
                work(self, volume.clone()).await;
                volume.close().await;
            });
        })
    }
    /// All kinds of work through the library, beside each other, until the end of the run.
    pub fn through_library(self) -> JoinHandle<()> {
        self.with_volume("library", async |host, volume| {
            let Host { client, work, .. } = &host;
            let (client, shared) = (*client, || work.clone());
            let rng = SimRng::seeded(host.rng(1).next());
            let caller = Caller { client, volume: volume.clone(), rng, work: shared() };
            let renamer = Renamer { client, volume: volume.clone(), rng: host.rng(2), work: shared() };
            let appender = Appender::new(client, host.rng(3));
            let overwriter = Overwriter { client, rng: host.rng(4) };
            let recorder = Recorder::new(client, host.rng(9));
            tokio::join!(
                caller.run(),
                renamer.run(),
                appender.run(volume.clone(), work),
                recorder.run(volume.clone(), work),
                overwriter.run(volume.clone(), work)
            );
        })
    }
    /// The same through a mount, one thing after the other.
    pub fn through_mount(self, mount: Arc<Mount>) -> JoinHandle<()> {
        std::thread::spawn(move || {
            // SAFETY: this thread has its own mask of permissions from now on, so that tags are not cut off.
            let own = unsafe { libc::unshare(libc::CLONE_FS) };
            assert_eq!(own, 0, "{}", std::io::Error::last_os_error());
            rustix::process::umask(rustix::fs::Mode::empty());
            let (client, dir, work) = (self.client, mount.dir.clone(), self.work.clone());
            let mut names = Mounted { client, dir: dir.clone(), rng: self.rng(5), work: work.clone() };
            let mut appender = Appender::new(client, self.rng(6));
            let mut overwriter = Overwriter { client, rng: self.rng(7) };
            let mut rng = self.rng(8);
            while !work.is_over() {
                match rng.below(24) {
                    0 => appender.through_mount(&work, &dir),
                    1 => overwriter.through_mount(&work, &dir),
                    2 | 3 => overwriter.read_through_mount(&work, &dir),
                    4 => versions::through_mount(&work, client, &dir, &mut rng),
                    _ => names.step(),
                }
                std::thread::sleep(Duration::from_millis(rng.below(60)));
            }
        })
    }
    /// Takes snapshots and compares them, from then on one that stays.
    pub fn snapshots(self, commands: Commands, mount: Option<Arc<Mount>>, last_from: Instant) -> JoinHandle<()> {
        self.with_volume("snapshots", async move |host, volume| {
            let (rng, work) = (host.rng(10), host.work.clone());
            Snapshooter { commands, mount, rng, work, last_from }.run(volume).await;
        })
    }
    /// Checks rounds that have rested, until the end of the run.
    pub fn finisher(self) -> JoinHandle<()> {
        self.with_volume("finisher", async |host, volume| {
            while !host.work.is_over() {
                match host.work.rounds.take_rested(false) {
                    Some(round) => {
                        if !finish(&volume, &round, &host.work.counts).await {
                            host.work.rounds.put_back(round);
                        }
                    }
                    None => tokio::time::sleep(Duration::from_millis(200)).await,
                }
            }
        })
    }
    /// Checks everything when nobody works any more and all is healed.
    pub fn last_checks(self) -> JoinHandle<()> {
        self.with_volume("last checks", async |host, volume| {
            let work = &host.work;
            while let Some(round) = work.rounds.take_rested(true) {
                assert!(finish(&volume, &round, &work.counts).await, "{} cannot be read", round.path);
            }
            for file in work.appends.files() {
                let name = super::appends::path(file);
                let bytes = match versions::read_all(&volume, &name, 0, u64::MAX).await {
                    // Nobody could make it.
                    Err(error) if error.is_not_found() => Vec::new(),
                    read => read.unwrap_or_else(|error| panic!("{name}: {error}")),
                };
                let records = work.appends.check(file, &bytes).unwrap_or_else(|wrong| panic!("{wrong}"));
                println!("{name}: {records} records");
            }
            for file in work.records.files() {
                let records = work.records.check_all(&volume, file).await.unwrap_or_else(|wrong| panic!("{wrong}"));
                println!("{}: {records} records", super::records::path(file));
            }
            for (file, name) in super::blocks::FILES.iter().enumerate() {
                work.blocks.check_all(&volume, file).await.unwrap_or_else(|error| panic!("{name}: {error}"));
            }
        })
    }
}

/// Files with blocks as they are in the beginning.
pub fn make_blocks(work: &Work, dir: &Path, put: impl Fn(&Path, &str)) {
    for (file, name) in super::blocks::FILES.iter().enumerate() {
        let local = dir.join(format!("blocks-{file}"));
        std::fs::write(&local, work.blocks.first(file)).expect("local file");
        put(&local, name);
    }
}
