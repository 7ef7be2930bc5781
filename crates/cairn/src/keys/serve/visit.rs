//! [`Desk`]: one connection of an authority's port: a handshake, a request, its answer.
use super::crowd::Network;
use crate::audit::Desk as AuditDesk;
use cairn_rpc::Refusal;
use cairn_rpc::carrier::Carrier;
use cairn_security::{
    Authority, Denied, Issued, Revoked, Wanted, date, explain, exported, holder_of, is_joining, is_proven,
};
use cairn_wire::audience::Caller;
use cairn_wire::enrol::{self, Answer, Asked, LENGTH_LEN, MESSAGE_MAX, Place};
use cairn_wire::holder::MANAGER_ID_MAX;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::server::TlsStream;

/// All of a connection.
const DEADLINE: Duration = Duration::from_secs(10);
/// Bytes that somebody may send: a handshake with a certificate, and a request.
const BYTES_MAX: usize = MESSAGE_MAX + 1024;
/// Refusals of one network in [`PERIOD`], behind which it is not listened to.
const REFUSALS_MAX: u32 = 30;
const PERIOD: Duration = Duration::from_secs(60);
/// Certificates that one name gets in [`PERIOD`] for the one that it shows: one, and more where answers are lost.
const RENEWALS_MAX: u32 = 4;
/// Requests that are carried out at a time; others wait where they can be sent away.
const JUDGED_MAX: usize = super::SIGNING_THREADS;
/// Networks whose refusals are counted; behind that, those of one period are forgotten together.
const COUNTED_MAX: usize = 4096;

/// What a request is called in the audit log.
const ENROL: &str = "Enrol";
const RENEW: &str = "Renew";
const HANDSHAKE: &str = "handshake";

/// Answers those who come.
pub struct Desk {
    authority: Authority,
    acceptor: TlsAcceptor,
    revoked: Revoked,
    audit: Option<Arc<AuditDesk>>,
    refused: Mutex<Counts<Network>>,
    renewed: Mutex<Counts<String>>,
    judging: Arc<Semaphore>,
}

/// How often each was refused, or served, in the present period.
struct Counts<K> {
    since: Instant,
    counts: BTreeMap<K, u32>,
}

impl<K: Ord> Counts<K> {
    fn new(since: Instant) -> Self {
        Self { since, counts: BTreeMap::new() }
    }

    /// Whether somebody has to wait for the next period.
    fn are_too_many(&mut self, of: &K, max: u32, now: Instant) -> bool {
        if now.duration_since(self.since) >= PERIOD {
            *self = Self::new(now);
        }
        self.counts.get(of).is_some_and(|count| *count >= max)
    }

    fn count(&mut self, of: K) {
        if self.counts.len() < COUNTED_MAX || self.counts.contains_key(&of) {
            *self.counts.entry(of).or_default() += 1;
        }
    }
}

impl Desk {
    pub fn new(authority: Authority, acceptor: TlsAcceptor, revoked: Revoked, audit: Option<Arc<AuditDesk>>) -> Self {
        let (now, judging) = (Instant::now(), Arc::new(Semaphore::new(JUDGED_MAX)));
        let (refused, renewed) = (Mutex::new(Counts::new(now)), Mutex::new(Counts::new(now)));
        Self { authority, acceptor, revoked, audit, refused, renewed, judging }
    }

    /// Serves one connection.
    pub async fn receive(self: Arc<Self>, tcp: TcpStream, from: IpAddr) {
        let outcome = tokio::time::timeout(DEADLINE, self.clone().serve(tcp, from)).await;
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(error)) => match explain(&error) {
                Some(why) => self.tell_refused(from, None, HANDSHAKE, &why),
                None => tracing::debug!(%from, %error, "a connection ended"),
            },
            Err(_) => tracing::debug!(%from, "a connection took too long"),
        }
    }

    async fn serve(self: Arc<Self>, tcp: TcpStream, from: IpAddr) -> io::Result<()> {
        let mut stream = self.acceptor.accept(Carrier::bounded(tcp, BYTES_MAX)).await?;
        let (_, handshake) = stream.get_ref();
        if !is_joining(handshake.alpn_protocol()) {
            return Err(io::Error::other("it speaks TLS, and not with an authority"));
        }
        let exported = exported(handshake).map_err(io::Error::other)?;
        let shown = handshake.peer_certificates().and_then(|shown| shown.first()).map(|one| one.clone().into_owned());
        let request = read(&mut stream).await?;
        if self.refused.lock().are_too_many(&Network::of(from), REFUSALS_MAX, Instant::now()) {
            // Nothing is looked at: who guesses learns nothing, and who does not learns what he waits for.
            let why = format!(
                "this network was refused {REFUSALS_MAX} times within a minute, and is not listened to until the minute is over: try again then"
            );
            stream.write_all(&enrol::encode_answer(&Err(why))).await?;
            return stream.shutdown().await;
        }
        let desk = self.clone();
        // What was handed over is carried out, also where nobody waits for it any more: it is handed over when it is
        // its turn. It writes durably: not on the thread that everybody waits for.
        let turn = self.judging.clone().acquire_owned().await.map_err(io::Error::other)?;
        let judged = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            desk.judge(from, &request, shown.as_ref(), &exported)
        });
        let answer = judged.await.map_err(io::Error::other)?;
        stream.write_all(&enrol::encode_answer(&answer)).await?;
        stream.shutdown().await
    }

    /// What somebody gets, which is written down.
    fn judge(
        &self,
        from: IpAddr,
        request: &[u8],
        shown: Option<&CertificateDer<'static>>,
        exported: &[u8; 32],
    ) -> Answer {
        let Some(asked) = enrol::decode_asked(request) else {
            return self.refuse(from, None, HANDSHAKE, "that is no request of this version of Cairn".to_owned());
        };
        let (operation, proven) = match &asked {
            Asked::Enrol(_, proven, _) => (ENROL, *proven),
            Asked::Renew(proven) => (RENEW, *proven),
        };
        let name = shown.and_then(holder_of).map(|holder| holder.name);
        let name = name.as_deref();
        if !is_proven(&proven.public_key, exported, &proven.proof) {
            let why = "the caller does not show that it has the private key".to_owned();
            return self.refuse(from, name, operation, why);
        }
        let made = match (&asked, shown) {
            (Asked::Enrol(secret, _, place), _) => {
                let may = |wanted: &Wanted| self.may_enrol(wanted, *place);
                self.authority.enrol(secret, &proven.public_key, may)
            }
            (Asked::Renew(_), Some(present)) => self.renew(present, &proven.public_key),
            (Asked::Renew(_), None) => Err(Denied::Asker("the caller shows no certificate".to_owned())),
        };
        match made {
            Ok(Issued { holder, certificate }) => {
                tracing::info!(name = holder.name, %from, operation, until = date(holder.until), "a key was given out");
                if let Some(audit) = &self.audit {
                    audit.issued(from, &holder, operation);
                }
                Ok(certificate.to_vec())
            }
            Err(Denied::Asker(why)) => self.refuse(from, name, operation, why),
            Err(Denied::Failed(error)) => {
                tracing::error!(%error, operation, "the authority cannot give out a key");
                let why = "the authority cannot write what it has to; its log says why. Try again".to_owned();
                self.refuse(from, name, operation, why)
            }
        }
    }

    /// Why a token is not for whoever comes with it.
    fn may_enrol(&self, wanted: &Wanted, place: Option<Place>) -> Result<(), String> {
        if self.is_revoked(&wanted.name) {
            return Err(format!("the name {} was revoked: make a token with another name", wanted.name));
        }
        place.map_or(Ok(()), |place| fits(wanted, place))
    }

    fn is_revoked(&self, name: &str) -> bool {
        // A list that cannot be read any more goes on to count as it was.
        if let Err(error) = self.revoked.look() {
            tracing::error!(%error, "the list of revoked keys cannot be read; the last one goes on to count");
        }
        self.revoked.has(name)
    }

    fn renew(&self, present: &CertificateDer<'static>, public_key: &[u8; 32]) -> Result<Issued, Denied> {
        let name = holder_of(present).map(|holder| holder.name).unwrap_or_default();
        if self.is_revoked(&name) {
            return Err(Denied::Asker(format!("the key of {name} was revoked: it is not renewed")));
        }
        if self.renewed.lock().are_too_many(&name, RENEWALS_MAX, Instant::now()) {
            let why = format!("the key of {name} was renewed {RENEWALS_MAX} times within a minute: try again later");
            return Err(Denied::Asker(why));
        }
        let issued = self.authority.renew(present, public_key)?;
        self.renewed.lock().count(name);
        Ok(issued)
    }

    fn refuse(&self, from: IpAddr, name: Option<&str>, operation: &'static str, why: String) -> Answer {
        tracing::warn!(%from, name, operation, why, "refused");
        self.tell_refused(from, name, operation, &why);
        let is_last = {
            let mut refused = self.refused.lock();
            refused.count(Network::of(from));
            refused.counts.get(&Network::of(from)) == Some(&REFUSALS_MAX)
        };
        if is_last {
            let why =
                format!("{REFUSALS_MAX} refusals within a minute: its network is not listened to until that is over");
            tracing::warn!(%from, "{why}");
            self.tell_refused(from, None, "network", &why);
        }
        Err(why)
    }

    fn tell_refused(&self, from: IpAddr, name: Option<&str>, operation: &'static str, why: &str) {
        if let Some(audit) = &self.audit {
            audit.not_issued(&Refusal { from, name, operation, why });
        }
    }
}

/// Whether the key for which a token was made is one for this server.
fn fits(wanted: &Wanted, place: Place) -> Result<(), String> {
    let Wanted { name, caller, node, .. } = wanted;
    let refused =
        |why: String| Err(format!("{why}. Make a token for this server; the one of {name} is as good as before"));
    let Caller::Node(roles) = caller else {
        return refused(format!("the token is for {name}, who is no server"));
    };
    if !roles.covers(place.roles) {
        return refused(format!(
            "the token is for {name}, with the roles {roles}, and this server has {}",
            place.roles
        ));
    }
    if node.get() != place.member && !(place.member == 0 && node.get() > MANAGER_ID_MAX) {
        let (of, member) = (node.get(), place.member);
        return refused(format!(
            "the token is for {name}, member {of} of the managers, and manager.member of this server says {member} (0: none)"
        ));
    }
    Ok(())
}

async fn read(stream: &mut TlsStream<Carrier>) -> io::Result<Vec<u8>> {
    let mut head = [0; LENGTH_LEN];
    stream.read_exact(&mut head).await?;
    let length = enrol::length(head).ok_or_else(|| io::Error::other("its request is too long"))?;
    let mut message = vec![0; length];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_types::NodeId;
    use cairn_wire::audience::Roles;
    use cairn_wire::rights::Rights;

    /// A token that was pasted on the wrong machine would be used up there, and the right one told of a thief.
    #[test]
    fn a_token_for_another_server_is_refused() {
        let wanted = |roles: Roles, node: u32| Wanted {
            name: "n1".to_owned(),
            caller: Caller::Node(roles),
            node: NodeId(node),
            life: 600,
            rights: Rights::everything(),
            again: false,
        };
        let (all, data) = (Roles::ALL, Roles::DATA);
        let place = |roles, member| Place { roles, member };
        assert!(fits(&wanted(all, 3), place(all, 3)).is_ok() && fits(&wanted(data, 0), place(data, 0)).is_ok());
        assert!(fits(&wanted(data, 17), place(data, 0)).is_ok(), "one that is bound to the id of its node");
        for (wanted, place, why) in [
            (wanted(all, 3), place(all, 2), "member 3"),
            (wanted(all, 3), place(data, 0), "member 3"),
            (wanted(data, 0), place(Roles::META.with(data), 0), "roles data"),
            (Wanted { caller: Caller::Client, ..wanted(data, 0) }, place(data, 0), "no server"),
        ] {
            let said = fits(&wanted, place).expect_err(why);
            assert!(said.contains(why) && said.contains("as good as before"), "{said}");
        }
    }

    /// Whoever guesses would be answered for as long as he likes; or one network's guesses keep others out.
    #[test]
    fn who_is_refused_again_and_again_has_to_wait() {
        let start = Instant::now();
        let of = |number: u32| Network::of(IpAddr::V4(number.into()));
        let mut refusals = Counts::new(start);
        let are_too_many = |refusals: &mut Counts<Network>, of, now| refusals.are_too_many(&of, REFUSALS_MAX, now);
        for _ in 0..REFUSALS_MAX {
            assert!(!are_too_many(&mut refusals, of(1), start));
            refusals.count(of(1));
        }
        assert!(are_too_many(&mut refusals, of(1), start + PERIOD / 2));
        assert!(!are_too_many(&mut refusals, of(2), start));
        (0..2 * COUNTED_MAX as u32).for_each(|number| refusals.count(of(number)));
        assert_eq!(refusals.counts.len(), COUNTED_MAX);
        assert!(!are_too_many(&mut refusals, of(1), start + PERIOD), "in the next period it is listened to again");
    }
}
