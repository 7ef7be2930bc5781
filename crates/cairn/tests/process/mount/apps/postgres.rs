//! PostgreSQL: pgbench with several clients, the server killed in the middle, recovery, and sums that have to agree.
use super::Place;
use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

/// The server runs as somebody else than root.
const USER: &str = "postgres";
const SECONDS: u32 = 15;

/// All money that was moved is somewhere.
const SUMS: &str = "select (select sum(abalance) from pgbench_accounts), (select sum(tbalance) from pgbench_tellers), \
                    (select sum(bbalance) from pgbench_branches), (select coalesce(sum(delta), 0) from pgbench_history)";

struct Server<'a> {
    place: &'a Place,
    data: PathBuf,
    socket: PathBuf,
}

impl Server<'_> {
    /// A command as the server's user.
    fn command(&self, what: &str) -> String {
        let (data, socket) = (self.data.display(), self.socket.display());
        format!(
            "export PGDATA={data} PGHOST={socket} PGPORT=5432; \
             setpriv --reuid={USER} --regid={USER} --init-groups env PATH=\"$PATH\" {what}"
        )
    }
    fn run(&self, what: &str) -> String {
        self.place.sh(&self.socket, &self.command(what))
    }
    fn start(&self) {
        let socket = self.socket.display();
        self.run(&format!(
            "pg_ctl -w -t 120 -l {socket}/log -o \"-c listen_addresses='' -c unix_socket_directories={socket}\" start"
        ));
    }
    fn sums(&self) -> Vec<i64> {
        let said = self.run(&format!("psql -AtF ' ' -c '{SUMS}' postgres"));
        let sums: Vec<i64> = said.split_whitespace().map(|sum| sum.parse().expect("a number")).collect();
        assert!(sums.len() == 4 && sums.iter().all(|sum| *sum == sums[0]), "money was lost or made: {sums:?}");
        sums
    }
    fn bench(&self, more: &str) -> Child {
        let command = self.command(&format!("pgbench -n -c 4 -j 2 -T {SECONDS} {more} postgres"));
        self.place.shell(&self.socket, &command).spawn().expect("sh")
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        // Also after a failure: its files are on the mount.
        let _may_be_stopped = self.place.output(&self.socket, &self.command("pg_ctl -m immediate stop"));
    }
}

pub fn run(place: &mut Place) {
    let place = &*place;
    let socket = place.local.path().join("socket");
    place.sh(place.local.path(), &format!(
        "chmod 755 .; mkdir socket; chown {USER} socket; mkdir \"$DIR/data\"; chown {USER} \"$DIR/data\"; chmod 700 \"$DIR/data\""
    ));
    let server = Server { place, data: place.dir.join("data"), socket };
    server.run("initdb --data-checksums -A trust");
    server.start();
    server.run("pgbench -q -i -s 2 postgres");
    let ended = server.bench("").wait().expect("wait");
    assert!(ended.success(), "pgbench failed");
    let transactions = server.run("psql -At -c 'select count(*) from pgbench_history' postgres");
    println!("  {} transactions in {SECONDS} s", transactions.trim());
    server.sums();
    // Killed in the middle of it; the log brings everything back that was acknowledged.
    let mut bench = server.bench("");
    std::thread::sleep(Duration::from_secs(4));
    let pid = std::fs::read_to_string(server.data.join("postmaster.pid")).expect("the server's process id");
    let pid = pid.lines().next().expect("a line").to_owned();
    place.sh(place.local.path(), &format!("kill -9 {pid}"));
    bench.wait().expect("wait");
    // Its children notice that it is gone.
    std::thread::sleep(Duration::from_secs(2));
    server.start();
    server.sums();
    server.run("pg_ctl -m fast stop");
    server.run("pg_checksums --check");
    server.start();
    server.sums();
    server.run("pg_ctl -m fast stop");
}
