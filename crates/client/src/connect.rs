//! Connecting to a cluster: the entry point of the library.
use crate::admin_way::{AdminVia, AdminWay};
use crate::cluster::{Cluster, FirstContact};
use crate::credentials::Credentials;
use crate::error::Result;
use crate::key::Key;
use crate::meta::volume::Volume;
use crate::net::Net;
use crate::read::health::HedgeBounds;
use crate::read::shard_reads::ShardReads;
use crate::stale::{Stale, StaleReads, Staleness};
use crate::view::ClusterView;
use crate::waits::ToldWaits;
use cairn_env::{FastRng, RealClock};
use cairn_rpc::{CallOptions, ClientConfig, Identity, Payload};
use cairn_security::Tls;
use cairn_wire::Opcode;
use std::sync::Arc;
use std::time::Duration;

/// How to connect.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Managers, `host:port` each; one that answers is enough.
    pub managers: Vec<String>,
    /// Who asks, for permission checks.
    pub who: Credentials,
    /// Host and rack of this process, if known, for reading and writing nearby.
    pub host: String,
    pub rack: String,
    /// Longest time that a call tries before it gives up.
    pub patience: Duration,
    /// Longest time that the first contact takes while nobody at all answers. A server that answers, if only that it is
    /// starting or that an election is running, is contact: then it is [`Self::patience`].
    pub connect_patience: Duration,
    /// Longest time that the first contact takes while managers answer, and that none of them leads; at most
    /// [`Self::patience`].
    pub leader_patience: Duration,
    /// Bulk connections to each data node.
    pub bulk_connections: usize,
    /// When a striped read no longer waits for a slow member.
    pub hedge: HedgeBounds,
    /// Reads may be answered by servers that do not lead, when who leads does not answer; `None`: never.
    pub stale: Option<StaleReads>,
    /// Managers alone will be talked to: also those that wait for nodes after their state was restored.
    pub managers_only: bool,
    /// Runtimes of one thread each, whose threads say so by [`belong_to`](crate::belong_to); each gets connections of
    /// its own. None: the connections are at home in the runtime that connects.
    pub runtimes: Vec<tokio::runtime::Handle>,
    /// How changes of the cluster go out; `None`: as all other requests.
    pub admin: Option<AdminVia>,
    /// The key that is shown.
    pub key: Key,
    /// Who hears that calls wait for servers.
    pub waits: ToldWaits,
}

impl ConnectOptions {
    pub fn new(managers: Vec<String>) -> Self {
        Self {
            managers,
            who: Credentials::default(),
            host: String::new(),
            rack: String::new(),
            patience: Duration::from_secs(30),
            connect_patience: Duration::from_secs(30),
            leader_patience: Duration::MAX,
            bulk_connections: 2,
            hedge: HedgeBounds::default(),
            stale: None,
            managers_only: false,
            runtimes: Vec::new(),
            admin: None,
            key: Key::Find,
            waits: ToldWaits::default(),
        }
    }
}

/// A connected cluster. Clones share everything.
#[derive(Clone)]
pub struct Client {
    cluster: Arc<Cluster>,
    who: Credentials,
}

impl Client {
    /// Connects on the current tokio runtime and fetches the cluster map.
    pub async fn connect(options: ConnectOptions) -> Result<Client> {
        let key = options.key.read(&options.managers)?;
        let had_none = key.is_none();
        match Self::connect_with(options.clone(), key).await {
            // A cluster that had just been started may have put the key of this user there meanwhile.
            Err(error) if had_none => match options.key.read(&options.managers)? {
                Some(key) => Self::connect_with(options, Some(key)).await,
                None => Err(error),
            },
            connected => connected,
        }
    }
    async fn connect_with(options: ConnectOptions, key: Option<Arc<Tls>>) -> Result<Client> {
        let config = ClientConfig { bulk_connections: options.bulk_connections, ..ClientConfig::default() };
        let identity = Identity::client_with_key(key.clone());
        let rpc = match &options.runtimes[..] {
            [] => cairn_rpc::Client::new(config, identity),
            runtimes => cairn_rpc::Client::with_runtimes(runtimes, config, identity),
        };
        let mut net = Net::new(rpc);
        if let Some(via) = options.admin {
            net = net.with_admin(AdminWay::new(via, options.managers.clone()));
        }
        let env = (Arc::new(RealClock) as _, Arc::new(FastRng::from_os()) as _);
        let place = (options.host, options.rack);
        let mut cluster = Cluster::new(net, env, options.managers, place, options.patience);
        cluster.first_contact =
            Some(FirstContact { silent: options.connect_patience, leaderless: options.leader_patience });
        cluster.stale = Stale::new(options.stale);
        cluster.managers_only = options.managers_only;
        cluster.waits.told = options.waits;
        cluster.key = key;
        cluster.refresh().await?;
        cluster.first_contact = None;
        cluster.shards = ShardReads::new(options.hedge);
        Ok(Client { cluster: Arc::new(cluster), who: options.who })
    }
    /// A client of servers, and with a clock, that a test brings.
    #[cfg(any(test, feature = "test-support"))]
    pub(crate) async fn over(
        net: Net,
        env: (Arc<dyn cairn_env::Clock>, Arc<dyn cairn_env::Rng>),
        options: ConnectOptions,
    ) -> Result<Client> {
        let place = (options.host, options.rack);
        let mut cluster = Cluster::new(net, env, options.managers, place, options.patience);
        cluster.first_contact =
            Some(FirstContact { silent: options.connect_patience, leaderless: options.leader_patience });
        cluster.stale = Stale::new(options.stale);
        cluster.managers_only = options.managers_only;
        cluster.refresh().await?;
        cluster.first_contact = None;
        Ok(Client { cluster: Arc::new(cluster), who: options.who })
    }
    /// The key that is shown to servers; none where they ask for none, or are not told of one.
    pub fn key(&self) -> Option<&Tls> {
        self.cluster.key.as_deref()
    }
    /// How old answers of servers that do not lead were so far; `None`: there were none.
    pub fn staleness(&self) -> Option<Staleness> {
        self.cluster.stale.told()
    }
    /// The cluster map as known now.
    pub fn view(&self) -> Arc<ClusterView> {
        self.cluster.view()
    }
    /// Fetches what changed in the cluster map.
    pub async fn refresh(&self) -> Result<Arc<ClusterView>> {
        self.cluster.refresh().await?;
        Ok(self.cluster.view())
    }
    /// A volume by name, as the identity that connected.
    pub async fn volume(&self, name: &str) -> Result<Volume> {
        let id = self.cluster.volume_id(name).await?;
        Ok(Volume::new(self.cluster.clone(), id, name, self.who.clone()))
    }
    /// A call to the manager's leader; `what` names it in errors. With messages of the wire, as those below: for load
    /// generators and tests of servers. Fronts use methods with types of this library.
    pub async fn manager<A: prost::Message + Default>(
        &self,
        what: &str,
        opcode: Opcode,
        request: &impl prost::Message,
    ) -> Result<A> {
        self.cluster.manager(what, opcode, request).await
    }
    /// A small call to the process at an address, such as a data node.
    pub async fn call<A: prost::Message + Default>(
        &self,
        what: &str,
        address: &str,
        opcode: Opcode,
        request: &impl prost::Message,
        deadline: Duration,
    ) -> Result<A> {
        let answer = self.cluster.net.call(address, opcode, request, deadline).await;
        answer.map_err(|error| error.into_client(what, address, deadline))
    }
    /// A call to the process at an address whose answer brings bytes, such as a part of a checkpoint.
    pub async fn fetch<A: prost::Message + Default>(
        &self,
        what: &str,
        address: &str,
        opcode: Opcode,
        request: &impl prost::Message,
        deadline: Duration,
    ) -> Result<(A, Vec<u8>)> {
        let options = CallOptions::new(deadline).bulk();
        let answer = self.cluster.net.call_with(address, opcode, request, Payload::None, options).await;
        let (answer, bytes) = answer.map_err(|error| error.into_client(what, address, deadline))?;
        Ok((answer, bytes.map(|bytes| bytes.to_vec()).unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ClientError;
    use crate::fake::FakeCluster;
    use crate::net::{LocalCall, LocalServers};
    use cairn_rpc::CallError;
    use cairn_wire::error::WireError;
    use std::time::Instant;

    /// Commands would fail while a cluster starts, or hang for the whole patience where there is none.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_answer_is_contact_and_silence_is_not() {
        let cluster = FakeCluster::start(1, &[]);
        let options = |managers, connect_patience| ConnectOptions { connect_patience, ..ConnectOptions::new(managers) };
        // A busy machine may not answer in so short a time.
        let mut waited = false;
        for more in [1, 4, 16] {
            cluster.fake.state.lock().starting = 8 * more;
            let (short, begun) = (Duration::from_millis(100) * more, Instant::now());
            match Client::connect(options(vec![cluster.manager()], short)).await {
                Ok(_) => waited = begun.elapsed() > short && cluster.fake.state.lock().starting == 0,
                Err(error) => assert!(matches!(error, ClientError::Unreachable { .. }), "{error}"),
            }
            if waited {
                break;
            }
        }
        assert!(waited, "contact, and then a map, for which it had to wait");
        let short = Duration::from_millis(100);
        let gone = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port");
        let begun = Instant::now();
        match Client::connect(options(vec![gone.to_string()], short)).await.err() {
            Some(ClientError::Unreachable { seconds, .. }) => assert_eq!(seconds, short.as_secs()),
            other => panic!("{other:?}"),
        }
        assert!(begun.elapsed() < ConnectOptions::new(Vec::new()).patience, "the short limit");
    }

    /// Managers without a majority.
    struct Leaderless;

    impl LocalServers for Leaderless {
        fn call(&self, _: &str, _: u16, _: &[u8], _: &[u8], _: Duration) -> LocalCall {
            Box::pin(async { Err(CallError::Remote(WireError::not_leader(None))) })
        }
    }

    /// Whoever looks for what is wrong would be told after half a minute; or a program would give up during an
    /// election.
    #[tokio::test(start_paused = true)]
    async fn who_only_looks_hears_soon_that_no_manager_leads() {
        let (soon, patience) = (Duration::from_secs(5), Duration::from_secs(30));
        for leader_patience in [soon, Duration::MAX] {
            let connect_patience = Duration::from_millis(1);
            let options = ConnectOptions::new(vec!["a:1".into(), "b:1".into()]);
            let options = ConnectOptions { patience, connect_patience, leader_patience, ..options };
            let begun = tokio::time::Instant::now();
            match FakeCluster::try_connect(Arc::new(Leaderless), options).await.err() {
                Some(ClientError::NoLeader { seconds, last, .. }) => {
                    assert_eq!(seconds, leader_patience.min(patience).as_secs());
                    assert!(last.contains("a:1: ") && last.contains("b:1: "), "who answers: {last}");
                }
                other => panic!("{other:?}"),
            }
            let (waited, wanted) = (begun.elapsed(), leader_patience.min(patience));
            assert!(waited >= wanted && waited < wanted + Duration::from_secs(1), "{waited:?}");
        }
    }
}
