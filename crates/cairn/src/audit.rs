//! [`AuditLog`]: who came in, who was refused, who changed the cluster, and, if wanted, who removed names: a file of
//! its own, a JSON object a line.
//!
//! Invariants: nobody who is served waits for it; what is told again and again is counted, not written each time; the
//! files together take a bounded part of the disk; a line that was written is synced before the next ones are awaited;
//! no key, secret or content is in it. Not here: what is told (`rpc`), the log of all requests (`node/request_log.rs`).
mod object;

use anyhow::Context;
use cairn_rpc::{AuditSink, PeerInfo, Refusal};
use cairn_security::moment;
use cairn_wire::Opcode;
use cairn_wire::holder::Holder;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A file is followed by the next one at this size.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Files of before that are kept.
const FILES_KEPT: u32 = 7;
/// The same from the same is written once in this time, and then with its number.
const PERIOD: Duration = Duration::from_secs(10);
/// Different things that are counted in that time; what comes beyond is counted together.
const COUNTED_MAX: usize = 1280;
/// Of them refusals of strangers, who can make any number: room is left for what holders of keys did.
const STRANGERS_MAX: usize = 64;
/// And refusals of those: room is left for who came in and what administrators did.
const REFUSED_MAX: usize = 448;
/// Refusals of one key: room is left for those of others.
const REFUSED_OF_ONE_MAX: usize = 64;
/// Logins: room is left for what administrators did. And those of one key, which may come from any number of addresses.
const LOGINS_MAX: usize = 384;
const LOGINS_OF_ONE_MAX: usize = 64;
/// Removals, likewise, and those of one key.
const REMOVALS_MAX: usize = 256;
const REMOVALS_OF_ONE_MAX: usize = 64;
/// Lines that wait to be written; further ones are dropped and counted.
const WAITING_MAX: usize = 4096;

const LOGIN: &str = "login";
const REMOVAL: &str = "removal";

/// What is told, without its time and number.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Told {
    event: &'static str,
    name: Option<String>,
    kind: &'static str,
    from: String,
    operation: String,
    /// What is to be changed.
    object: String,
    /// Of a server's refusal in no key: whoever asks for what is not there gets another answer each time.
    why: String,
}

/// How often something was told since it was written.
struct Count {
    count: u64,
    since: u64,
    /// Of a refusal the first one.
    why: String,
}

impl Told {
    fn is_refusal(&self) -> bool {
        self.event == "refused"
    }

    fn line(&self, why: &str, since: u64, count: u64) -> Value {
        let mut line =
            json!({ "time": moment(cairn_security::now()), "event": self.event, "from": self.from, "count": count });
        if let Some(name) = &self.name {
            line["name"] = json!(name);
        }
        for (key, text) in [("kind", self.kind), ("operation", &self.operation), ("object", &self.object), ("why", why)]
        {
            if !text.is_empty() {
                line[key] = json!(text);
            }
        }
        if count > 1 {
            line["since"] = json!(moment(since));
        }
        line
    }
}

/// What was told in the present period: how often since it was written, and since when.
#[derive(Default)]
struct Counts {
    told: BTreeMap<Told, Count>,
    /// How many of them are refusals of strangers.
    strangers: usize,
    /// And of holders of keys, by their names.
    refused: usize,
    refused_of: BTreeMap<String, usize>,
    logins: usize,
    logins_of: BTreeMap<String, usize>,
    removals: usize,
    removals_of: BTreeMap<String, usize>,
    others: u64,
}

impl Counts {
    /// Takes a place for something that was not told in this period yet, if there is one.
    fn has_place(&mut self, told: &Told) -> bool {
        match &told.name {
            None if told.is_refusal() => {
                let has_place = self.strangers < STRANGERS_MAX;
                self.strangers += usize::from(has_place);
                has_place
            }
            Some(name) if told.is_refusal() => {
                has_place_of(name, (&mut self.refused, REFUSED_MAX), (&mut self.refused_of, REFUSED_OF_ONE_MAX))
            }
            Some(name) if told.event == LOGIN => {
                has_place_of(name, (&mut self.logins, LOGINS_MAX), (&mut self.logins_of, LOGINS_OF_ONE_MAX))
            }
            // Of whom no key is known, all together are one.
            name if told.event == REMOVAL => has_place_of(
                name.as_deref().unwrap_or_default(),
                (&mut self.removals, REMOVALS_MAX),
                (&mut self.removals_of, REMOVALS_OF_ONE_MAX),
            ),
            _ => {
                let others = self.told.len() - self.strangers - self.refused - self.logins - self.removals;
                others < COUNTED_MAX - STRANGERS_MAX - REFUSED_MAX - LOGINS_MAX - REMOVALS_MAX
            }
        }
    }
}

/// Takes a place of all of a kind, and of those of one name.
fn has_place_of(
    name: &str,
    (all, all_max): (&mut usize, usize),
    (of, of_max): (&mut BTreeMap<String, usize>, usize),
) -> bool {
    let own = of.get(name).copied().unwrap_or(0);
    let has_place = *all < all_max && own < of_max;
    if has_place {
        *all += 1;
        of.insert(name.to_owned(), own + 1);
    }
    has_place
}

/// Takes what is told.
pub struct Desk {
    /// Who removes names is told, too.
    removals: bool,
    counts: Mutex<Counts>,
    lines: SyncSender<Value>,
    dropped: AtomicU64,
}

impl Desk {
    fn tell(&self, told: Told) {
        let why = told.why.clone();
        self.tell_because(told, why);
    }

    /// `why` is that of the first one, if it is not among what tells things apart.
    fn tell_because(&self, told: Told, why: String) {
        let now = cairn_security::now();
        let line = told.line(&why, now, 1);
        {
            let mut counts = self.counts.lock();
            if let Some(known) = counts.told.get_mut(&told) {
                known.count += 1;
                return;
            }
            if !counts.has_place(&told) {
                counts.others += 1;
                return;
            }
            counts.told.insert(told, Count { count: 0, since: now, why });
        }
        self.write(line);
    }

    fn write(&self, line: Value) {
        if self.lines.try_send(line).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What was counted in the period that ends.
    fn end_of_period(&self) -> Vec<Value> {
        let Counts { told, others, .. } = std::mem::take(&mut *self.counts.lock());
        let mut lines: Vec<Value> = told
            .into_iter()
            .filter(|(_, known)| known.count > 0)
            .map(|(told, known)| told.line(&known.why, known.since, known.count))
            .collect();
        let now = moment(cairn_security::now());
        if others > 0 {
            lines.push(json!({ "time": now, "event": "not-told-apart", "count": others }));
        }
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            lines.push(json!({ "time": now, "event": "dropped", "count": dropped }));
        }
        lines
    }
}

impl Desk {
    /// An authority gave out a key.
    pub fn issued(&self, from: IpAddr, holder: &Holder, operation: &'static str) {
        self.tell(Told {
            event: "issued",
            name: Some(holder.name.clone()),
            kind: holder.kind(),
            from: from.to_string(),
            operation: operation.to_owned(),
            object: String::new(),
            why: format!("until {}", moment(holder.until)),
        });
    }

    /// An authority gave none. Each reason is told by itself, with the token that it names: there are few, and a token
    /// that was used already must not be hidden behind a wrong one.
    pub fn not_issued(&self, refusal: &Refusal<'_>) {
        self.tell(Told { why: refusal.why.to_owned(), ..refused(refusal) });
    }
}

/// Without its reason.
fn refused(refusal: &Refusal<'_>) -> Told {
    Told {
        event: "refused",
        name: refusal.name.map(str::to_owned),
        kind: "",
        from: refusal.from.to_string(),
        operation: refusal.operation.to_owned(),
        object: String::new(),
        why: String::new(),
    }
}

impl AuditSink for Desk {
    fn entered(&self, peer: &PeerInfo) {
        let Some(holder) = &peer.holder else { return };
        self.tell(Told {
            event: LOGIN,
            name: Some(holder.name.clone()),
            kind: holder.kind(),
            from: peer.addr.ip().to_string(),
            operation: String::new(),
            object: String::new(),
            why: String::new(),
        });
    }

    fn refused(&self, refusal: &Refusal<'_>) {
        self.tell_because(refused(refusal), refusal.why.to_owned());
    }

    fn heeds(&self, opcode: Opcode) -> bool {
        opcode.is_admin_change() || self.removals && object::is_removal(opcode)
    }

    fn asked(&self, peer: &PeerInfo, opcode: Opcode, message: &[u8]) {
        let Some(object) = object::of(opcode, message) else { return };
        self.tell(Told {
            event: if opcode.is_admin_change() { "admin" } else { REMOVAL },
            name: peer.holder.as_ref().map(|holder| holder.name.clone()),
            kind: peer.holder.as_ref().map_or("", |holder| holder.kind()),
            from: peer.addr.ip().to_string(),
            operation: opcode.name().to_owned(),
            object,
            why: String::new(),
        });
    }
}

/// The file that is written, and those before it.
struct Files {
    path: PathBuf,
    file: File,
    length: u64,
    max: u64,
}

impl Files {
    fn open(path: &Path, max: u64) -> io::Result<Self> {
        let file = open(path)?;
        let length = file.metadata()?.len();
        Ok(Self { path: path.to_path_buf(), file, length, max })
    }

    fn numbered(&self, number: u32) -> PathBuf {
        let mut name = self.path.as_os_str().to_owned();
        name.push(format!(".{number}"));
        PathBuf::from(name)
    }

    /// Durable when it returns.
    fn append(&mut self, lines: &[Value]) -> io::Result<()> {
        let mut text = String::new();
        for line in lines {
            text.push_str(&line.to_string());
            text.push('\n');
        }
        if self.length > 0 && self.length + text.len() as u64 > self.max {
            self.next()?;
        }
        self.file.write_all(text.as_bytes())?;
        self.length += text.len() as u64;
        self.file.sync_data()
    }

    fn next(&mut self) -> io::Result<()> {
        for number in (1..FILES_KEPT).rev() {
            match fs::rename(self.numbered(number), self.numbered(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        fs::rename(&self.path, self.numbered(1))?;
        self.file = open(&self.path)?;
        self.length = 0;
        let above = self.path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(above)?.sync_all()
    }
}

fn open(path: &Path) -> io::Result<File> {
    // Nobody leads it elsewhere.
    let flags = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(flags).open(path)
}

/// A running log; dropping it writes what there is.
pub struct AuditLog {
    desk: Option<Arc<Desk>>,
    thread: Option<JoinHandle<()>>,
    stop: SyncSender<()>,
}

impl AuditLog {
    /// Begins, or goes on, in this file; `removals`: with those of names.
    pub fn start(path: &Path, removals: bool) -> anyhow::Result<Self> {
        Self::start_with(path, removals, FILE_BYTES_MAX)
    }

    fn start_with(path: &Path, removals: bool, max: u64) -> anyhow::Result<Self> {
        let files = Files::open(path, max);
        let mut files =
            files.with_context(|| format!("the audit log {} cannot be written; make its directory", path.display()))?;
        let begun = json!({ "time": moment(cairn_security::now()), "event": "begun", "pid": std::process::id() });
        files.append(&[begun]).with_context(|| format!("the audit log {} cannot be written", path.display()))?;
        let (lines, waiting) = sync_channel(WAITING_MAX);
        let (stop, stopped) = sync_channel(1);
        let desk = Arc::new(Desk { removals, counts: Mutex::default(), lines, dropped: AtomicU64::new(0) });
        let told = desk.clone();
        let write = move || run(files, &told, &waiting, &stopped);
        let thread = std::thread::Builder::new().name("audit".into()).spawn(write)?;
        Ok(Self { desk: Some(desk), thread: Some(thread), stop })
    }

    /// Where an authority tells.
    pub fn desk(&self) -> Option<Arc<Desk>> {
        self.desk.clone()
    }

    /// Where servers tell.
    pub fn sink(&self) -> Option<Arc<dyn AuditSink>> {
        self.desk.clone().map(|desk| desk as Arc<dyn AuditSink>)
    }
}

impl Drop for AuditLog {
    fn drop(&mut self) {
        // Full: it was told to already.
        let _ = self.stop.try_send(());
        self.desk = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the audit log panicked");
        }
    }
}

/// Looks so often whether it is to end.
const LOOK: Duration = Duration::from_millis(200);

fn run(mut files: Files, desk: &Desk, waiting: &Receiver<Value>, stopped: &Receiver<()>) {
    let mut began = Instant::now();
    let mut failed = false;
    loop {
        let stop = stopped.try_recv().is_ok();
        let mut lines: Vec<Value> = match waiting.recv_timeout(LOOK) {
            Ok(line) => vec![line],
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Vec::new(),
        };
        lines.extend(waiting.try_iter().take(WAITING_MAX));
        if stop || began.elapsed() >= PERIOD {
            lines.extend(desk.end_of_period());
            began = Instant::now();
        }
        if !lines.is_empty() {
            match files.append(&lines) {
                Ok(()) => failed = false,
                Err(error) => {
                    desk.dropped.fetch_add(lines.len() as u64, Ordering::Relaxed);
                    // Said once, not each time.
                    if !std::mem::replace(&mut failed, true) {
                        let path = files.path.display();
                        tracing::error!(%path, %error, "the audit log cannot be written; what is told meanwhile is missing from it");
                    }
                }
            }
        }
        if stop {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn lines(path: &Path) -> Vec<Value> {
        let text = fs::read_to_string(path).expect("the log");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    fn refusal<'a>(name: &'a str, why: &'a str) -> Refusal<'a> {
        Refusal { from: [10, 0, 0, 1].into(), name: Some(name), operation: "Read", why }
    }

    /// Who was refused would not be found in the log, or fill the disk with it.
    #[test]
    fn what_comes_again_is_counted() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("audit");
        let log = AuditLog::start(&path, false).expect("begun");
        let sink = log.sink().expect("a sink");
        for _ in 0..1000 {
            sink.refused(&refusal("eve", "it is none of his"));
        }
        sink.refused(&refusal("bob", "it was revoked\nand more"));
        drop((sink, log));
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        let told = lines(&path);
        let of = |name: &str| told.iter().filter(|line| line["name"] == name).collect::<Vec<_>>();
        let counts: u64 = of("eve").iter().map(|line| line["count"].as_u64().expect("a number")).sum();
        assert_eq!((of("eve").len(), counts), (2, 1000), "once at once, and all the others together");
        assert_eq!(of("bob").len(), 1);
        assert!(told.iter().all(|line| line["time"].as_str().is_some_and(|time| time.ends_with('Z'))));
        // An authority's: a token that was used already is not hidden behind one for another server.
        let path = dir.path().join("authority");
        let log = AuditLog::start(&path, false).expect("begun");
        let desk = log.desk().expect("a desk");
        for why in ["the token is for n4", "the token of n5 was used", "the token is for n4"] {
            desk.not_issued(&Refusal { name: None, operation: "Enrol", ..refusal("", why) });
        }
        drop((desk, log));
        let reasons = |text: &str| lines(&path).iter().filter(|line| line["why"] == text).count();
        assert_eq!((reasons("the token is for n4"), reasons("the token of n5 was used")), (2, 1));
        // Another start goes on where this one ended.
        let path = dir.path().join("audit");
        drop(AuditLog::start(&path, false).expect("begun"));
        assert_eq!(lines(&path).len(), told.len() + 1);
    }

    /// Strangers, who need no key to be refused, would keep what an administrator does out of the log.
    #[test]
    fn strangers_leave_room_for_others() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("audit");
        let log = AuditLog::start(&path, false).expect("begun");
        let sink = log.sink().expect("a sink");
        for number in 0..2 * COUNTED_MAX as u32 {
            let from = std::net::Ipv4Addr::from(number).into();
            sink.refused(&Refusal { from, name: None, operation: "HTTP", why: "no" });
        }
        sink.refused(&refusal("bob", "it was revoked"));
        drop((sink, log));
        let told = lines(&path);
        assert_eq!(told.iter().filter(|line| line["name"] == "bob").count(), 1);
        assert!(told.len() <= STRANGERS_MAX + 4, "{} lines", told.len());
    }

    /// A tenant would keep administrators, and what others were refused, out of the log.
    #[test]
    fn one_key_leaves_room_for_others() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("audit");
        let log = AuditLog::start(&path, false).expect("begun");
        let (sink, desk) = (log.sink().expect("a sink"), log.desk().expect("a desk"));
        let operations: Vec<String> = (0..200).map(|number| format!("Operation{number}")).collect();
        for number in 0..2 * COUNTED_MAX {
            let (operation, why) = (operations[number % 200].as_str(), format!("there is no job {number}"));
            let from = [10, 0, 0, 1].into();
            sink.refused(&Refusal { from, name: Some("eve"), operation, why: &why });
        }
        sink.refused(&refusal("bob", "it was revoked"));
        let told = |event, operation: &str| Told {
            event,
            name: Some("ops-1".to_owned()),
            kind: "admin",
            from: "10.0.0.2".to_owned(),
            operation: operation.to_owned(),
            object: String::new(),
            why: String::new(),
        };
        for number in 0..2 * COUNTED_MAX {
            let from = format!("10.1.{number}");
            desk.tell(Told { name: Some("eve".to_owned()), from, ..told(LOGIN, "") });
        }
        for number in 0..2 * COUNTED_MAX {
            let object = format!("volume v{number}");
            desk.tell(Told { name: Some("eve".to_owned()), object, ..told(REMOVAL, "Unlink") });
        }
        desk.tell(told(LOGIN, ""));
        desk.tell(told("admin", "CreateVolume"));
        drop((sink, desk, log));
        let lines = lines(&path);
        let of = |name: &str| lines.iter().filter(|line| line["name"] == name).count();
        assert_eq!((of("bob"), of("ops-1")), (1, 2));
        assert!(of("eve") <= 2 * REFUSED_OF_ONE_MAX + LOGINS_OF_ONE_MAX + REMOVALS_OF_ONE_MAX, "{} lines", of("eve"));
    }

    /// Somebody who is refused in ever other ways would take memory and disk without end.
    #[test]
    fn all_of_it_is_bounded() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("audit");
        let log = AuditLog::start_with(&path, false, 4096).expect("begun");
        let sink = log.sink().expect("a sink");
        for number in 0..3 * COUNTED_MAX {
            sink.refused(&refusal(&format!("eve-{number}"), "it is none of his"));
        }
        drop((sink, log));
        let last = lines(&path);
        let others = last.iter().find(|line| line["event"] == "not-told-apart").expect("the rest is counted");
        assert_eq!(others["count"], (3 * COUNTED_MAX - REFUSED_MAX) as u64);
        for _ in 0..2 * FILES_KEPT {
            let mut files = Files::open(&path, 4096).expect("opened");
            files.append(&[json!("x".repeat(4000))]).expect("written");
        }
        let there = fs::read_dir(dir.path()).expect("files").count();
        assert_eq!(there, 1 + FILES_KEPT as usize, "older ones are gone");
        // Nothing that leads elsewhere is written to.
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), &link).expect("a link");
        assert!(AuditLog::start(&link, false).is_err() && !dir.path().join("elsewhere").exists());
    }
}
