//! [`Context`]: what a command works with: options, output, connections made on first use.
use crate::args::GlobalArgs;
use crate::default_address::check_default_address;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::human;
use crate::output::Out;
use crate::progress::Progress;
use crate::report::{BeyondQuota, Report};
use crate::tasks::Tasks;
use cairn_client::uri::{DEFAULT_CLUSTER, parse_addresses};
use cairn_client::{
    AdminVia, Client, ClientError, ConnectOptions, HedgeBounds, RemotePath, StaleReads, ToldWaits, UriError, Volume,
    own_process,
};
use cairn_security::{Tls, moment, now};
use cairn_types::ClusterId;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::Mutex;

/// Sessions are ended within this time, or left to expire.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);
/// What was written for nothing is freed within this time, or left to the servers.
const FREE_WITHIN: Duration = Duration::from_secs(20);

/// What a command works with.
pub struct Context {
    pub args: GlobalArgs,
    pub out: Out,
    /// Whether reads may be answered by servers that do not lead.
    stale: OnceLock<StaleReads>,
    /// When reads no longer wait for one member alone.
    hedge: OnceLock<HedgeBounds>,
    /// Where managers answer and none leads, that is soon said.
    only_looks: AtomicBool,
    /// It talks to managers alone.
    managers_only: AtomicBool,
    /// File mode mask of the process.
    pub umask: u32,
    /// What is to be known when a signal ends the command now.
    interrupted: parking_lot::Mutex<Option<String>>,
    /// What the command has under way beside itself.
    pub tasks: Tasks,
    beyond_quota: BeyondQuota,
    /// Places in which something is being built, removed if a signal ends the command.
    hidden: parking_lot::Mutex<Vec<(Volume, Vec<u8>)>>,
    clients: Mutex<BTreeMap<String, Client>>,
    volumes: Mutex<BTreeMap<(String, String), Volume>>,
}

impl Context {
    pub fn new(args: GlobalArgs) -> Self {
        let out = Out::new(args.json);
        // Reading the mask means setting it; nothing else runs yet.
        let mask = rustix::process::umask(rustix::fs::Mode::empty());
        rustix::process::umask(mask);
        let (clients, volumes) = (Mutex::default(), Mutex::default());
        let interrupted = parking_lot::Mutex::default();
        Self {
            args,
            out,
            stale: OnceLock::new(),
            hedge: OnceLock::new(),
            only_looks: AtomicBool::new(false),
            managers_only: AtomicBool::new(false),
            umask: mask.bits(),
            interrupted,
            tasks: Tasks::default(),
            beyond_quota: BeyondQuota::default(),
            hidden: parking_lot::Mutex::default(),
            clients,
            volumes,
        }
    }
    /// Reads of this command may be answered by servers that do not lead. To be said before anything is connected.
    pub fn allow_stale(&self, stale: StaleReads) {
        // A command says it once.
        let _ = self.stale.set(stale);
    }
    /// When reads of this command no longer wait for one member alone. To be said before anything is connected.
    pub fn hedge_reads(&self, bounds: HedgeBounds) {
        // A command says it once.
        let _ = self.hedge.set(bounds);
    }
    /// This command talks to managers alone, also to those that wait for nodes. To be said before anything is
    /// connected.
    pub fn managers_only(&self) {
        self.managers_only.store(true, Ordering::Relaxed);
    }
    /// This command only looks how the cluster is: if no manager leads, that is what it has to say, and soon. To be
    /// said before anything is connected.
    pub fn only_looks(&self) {
        self.only_looks.store(true, Ordering::Relaxed);
    }
    /// Says on standard error how old the answers were, if servers that do not lead gave some.
    pub async fn tell_staleness(&self) {
        for told in self.clients.lock().await.values().filter_map(Client::staleness) {
            let from: Vec<String> = told.sources.iter().map(|(of, by)| format!("{by} for {of}")).collect();
            let age = human::duration(told.age.max(Duration::from_secs(1)));
            let line = format!("answers are up to {age} old: no leader answered, these did: {}", from.join(", "));
            // Nobody reads standard error any more: then nobody is told.
            drop(writeln!(std::io::stderr(), "cairn: warning: {line}"));
        }
    }
    /// What a person has to know if a signal ends the command from now on.
    pub fn note_interrupt(&self, text: String) {
        *self.interrupted.lock() = Some(text);
    }
    /// Something is being built in a directory that nobody is to see.
    pub fn note_hidden(&self, volume: Volume, path: Vec<u8>) {
        self.hidden.lock().push((volume, path));
    }
    pub fn forget_hidden(&self, path: &[u8]) {
        self.hidden.lock().retain(|(_, other)| other != path);
    }
    pub fn interrupted(&self) -> CliError {
        self.interrupted.lock().take().map_or(CliError::Interrupted, CliError::InterruptedWork)
    }
    /// Parses a remote path of the command line.
    pub fn remote(&self, text: &OsStr) -> Result<RemotePath> {
        RemotePath::parse(text.as_bytes()).map_err(|error| match error {
            UriError::NotRemote(text) if text.is_empty() => CliError::from(UriError::NotRemote("".into())),
            other => CliError::from(other),
        })
    }
    /// The cluster of the options.
    pub async fn client(&self) -> Result<Client> {
        self.client_of(None).await
    }
    /// The cluster of a path, or of the options if it names none.
    pub async fn client_of(&self, cluster: Option<&[String]>) -> Result<Client> {
        let addresses = self.addresses(cluster)?;
        let key = addresses.join(",");
        let mut clients = self.clients.lock().await;
        if let Some(client) = clients.get(&key) {
            return Ok(client.clone());
        }
        if cluster.is_none() {
            let args = self.args.clone();
            let checked = tokio::task::spawn_blocking(move || check_default_address(&args)).await;
            checked.unwrap_or_else(|error| Err(CliError::refused(Exit::Other, error.to_string())))?;
        }
        let client = self.connect(addresses, &key).await?;
        clients.insert(key, client.clone());
        Ok(client)
    }
    /// The key that is shown to the cluster of the options.
    pub fn key(&self) -> Result<Option<Arc<Tls>>> {
        Ok(self.args.shown_key().read(&self.addresses(None)?)?)
    }
    /// The volume of a path.
    pub async fn volume(&self, path: &RemotePath) -> Result<Volume> {
        let key = (self.addresses(path.cluster.as_deref())?.join(","), path.volume.clone());
        if let Some(volume) = self.volumes.lock().await.get(&key) {
            return Ok(volume.clone());
        }
        let client = self.client_of(path.cluster.as_deref()).await?;
        let volume = client.volume(&path.volume).await?;
        Ok(self.volumes.lock().await.entry(key).or_insert(volume).clone())
    }
    /// What a quota had no room for, as a report of this command was told.
    pub fn beyond_quota(&self) -> Option<String> {
        self.beyond_quota.lock().clone()
    }
    /// Volumes that the command uses.
    pub async fn open_volumes(&self) -> Vec<Volume> {
        self.volumes.lock().await.values().cloned().collect()
    }
    /// Both paths lie in the same volume of the same cluster.
    pub fn same_volume(&self, one: &RemotePath, other: &RemotePath) -> Result<bool> {
        let same = self.addresses(one.cluster.as_deref())? == self.addresses(other.cluster.as_deref())?;
        Ok(same && one.volume == other.volume)
    }
    fn addresses(&self, cluster: Option<&[String]>) -> Result<Vec<String>> {
        if let Some(cluster) = cluster {
            return Ok(cluster.to_vec());
        }
        let text = self.args.cluster.as_deref().filter(|text| !text.is_empty()).unwrap_or(DEFAULT_CLUSTER);
        parse_addresses(text).map_err(|bad| CliError::from(UriError::BadAddress(text.into(), bad)))
    }

    async fn connect(&self, addresses: Vec<String>, key: &str) -> Result<Client> {
        let named = own_process::check_names(&addresses).await;
        named.map_err(|cause| CliError::UnknownCluster { addresses: key.to_owned(), cause })?;
        let options = ConnectOptions {
            who: own_process::credentials(),
            host: own_process::host_name(),
            patience: self.args.patience(),
            connect_patience: self.args.connect_patience(),
            leader_patience: match self.only_looks.load(Ordering::Relaxed) {
                true => self.args.connect_patience(),
                false => self.args.patience(),
            },
            hedge: self.hedge.get().copied().unwrap_or_default(),
            stale: self.stale.get().copied(),
            managers_only: self.managers_only.load(Ordering::Relaxed),
            admin: Some(self.args.admin_socket.clone().map_or(AdminVia::Find, AdminVia::Socket)),
            key: self.args.shown_key(),
            waits: if self.args.quiet || self.args.json { ToldWaits::default() } else { ToldWaits::to(tell_wait) },
            ..ConnectOptions::new(addresses)
        };
        let client = Client::connect(options).await.map_err(|error| match error {
            ClientError::Unreachable { tried, seconds, last, .. } => {
                ClientError::Unreachable { what: format!("cluster {key}"), tried, seconds, last }
            }
            error @ ClientError::NoLeader { .. } => error.named(&format!("cluster {key}")),
            other => other,
        })?;
        self.check_cluster_id(&client)?;
        if let Some(key) = client.key().filter(|_| !self.args.quiet) {
            tell_end(key);
        }
        Ok(client)
    }
    fn check_cluster_id(&self, client: &Client) -> Result<()> {
        let Some(text) = self.args.cluster_id.as_deref() else { return Ok(()) };
        let wanted: ClusterId = text.parse().map_err(|()| {
            CliError::usage(format!("{text:?} is no cluster id: write the UUID that cairn admin status shows"))
        })?;
        let found = client.view().cluster;
        if found == wanted {
            return Ok(());
        }
        let text = format!(
            "the cluster that answers is {found}, not {wanted} as asked; check --cluster, --cluster-id and their \
             environment variables; nothing was done"
        );
        Err(CliError::refused(Exit::WrongCluster, text))
    }

    /// A report with a progress bar on terminals.
    pub fn report(&self, verb: &'static str, bytes: Option<u64>) -> Report {
        let shown = !self.args.quiet && !self.args.json;
        Report::new(self.args.json, Progress::new(verb, shown, bytes), self.tasks.clone())
            .noting_quotas(&self.beyond_quota)
    }
    /// A report of a command that goes through trees and prints what it finds.
    pub fn walk_report(&self) -> Report {
        let shown = !self.args.quiet && !self.args.json;
        Report::new(self.args.json, Progress::of_walk(shown), self.tasks.clone()).noting_quotas(&self.beyond_quota)
    }
    /// A report for quick work.
    pub fn plain_report(&self) -> Report {
        Report::plain(self.args.json, self.tasks.clone()).noting_quotas(&self.beyond_quota)
    }
    /// Ends all sessions, so that what they held is released at once. What writers that failed or were given up had
    /// written is freed before; where that cannot be done soon, it is said.
    pub async fn close(&self) {
        let volumes = std::mem::take(&mut *self.volumes.lock().await);
        let is_freeing = volumes.values().any(Volume::is_freeing);
        // Said also where a signal ends the waiting.
        let mut unfreed = Unfreed { is_left: is_freeing };
        let patience = if is_freeing { FREE_WITHIN } else { CLOSE_WITHIN };
        let close_all = async {
            let mut freed = true;
            for volume in volumes.values() {
                freed &= volume.close_within(patience).await;
            }
            freed
        };
        let freed = tokio::time::timeout(patience + CLOSE_WITHIN, close_all).await.unwrap_or_else(|_| {
            tracing::debug!("sessions were left to expire");
            false
        });
        unfreed.is_left &= !freed;
    }
    /// A signal came: ends what is under way and frees what it wrote. To be dropped when another signal comes.
    pub async fn give_up(&self) {
        self.tasks.end().await;
        let hidden = std::mem::take(&mut *self.hidden.lock());
        for (volume, path) in hidden {
            if let Err(error) = crate::transfer::hidden::take_away(&volume, &path).await {
                tracing::debug!(%error, "what was being built is removed when it is built again");
            }
        }
        self.close().await;
    }
}

/// What is written for nothing and being freed. When dropped it says that this could not be done.
struct Unfreed {
    is_left: bool,
}

impl Drop for Unfreed {
    fn drop(&mut self) {
        if !self.is_left {
            return;
        }
        let text = "what was written of files that were not completed could not be freed now: it is freed by itself, cairn fs df shows by when";
        // Nobody reads standard error any more: then nobody is told.
        drop(writeln!(std::io::stderr(), "cairn: warning: {text}"));
    }
}
/// Says on standard error that the command goes on trying.
fn tell_wait(why: &str) {
    // Nobody reads standard error any more: then nobody is told.
    drop(writeln!(std::io::stderr(), "cairn: waiting: {why}"));
}

/// Says that a key is in the last part of its time. Without a next one its holder would be shut out one day.
fn tell_end(key: &Tls) {
    if key.validity().is_some_and(|validity| now() >= validity.warned()) {
        let (name, when) = (&key.holder().name, moment(key.until()));
        let next = "have the next one made, with another name (cairn key client, or cairn key token)";
        // As above.
        drop(writeln!(std::io::stderr(), "cairn: the key {name} ends at {when}, and then opens nothing; {next}"));
    }
}
