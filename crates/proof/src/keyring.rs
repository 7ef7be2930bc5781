//! [`Keyring`]: keys of a cluster that serves nobody without one: of each process, of clients, and of whoever asks past
//! all faults.
//!
//! They are made inside the run, where chance and time are the seed's, so the same seed shows the same certificates.
//! The directory of the authority is there meanwhile alone: it is real, and other runs make theirs at the same time.
//! Not here: who serves whom (`rpc`).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_security::{Authority, DAY, KeyFile, Mode, Tls, Wanted};
use cairn_types::NodeId;
use cairn_wire::audience::{Caller, Roles};
use cairn_wire::rights::Rights;

use crate::roster::manager_number;

const LIFE: u64 = 90 * DAY;
const SERVER: Caller = Caller::Node(Roles::ALL);

/// Where an authority may be made by the process with this real number. All paths have the same length.
pub fn directory(process: u32) -> PathBuf {
    std::env::temp_dir().join(format!("cairn-proof-{process:010}"))
}

/// Keys of all places, none where there is no security.
#[derive(Default)]
pub struct Keyring {
    /// By place: that of a manager, and that of whoever gets a number later.
    servers: Vec<[Arc<Tls>; 2]>,
    director: Option<Arc<Tls>>,
    client: Option<Arc<Tls>>,
}

/// Makes keys, and leaves nothing behind.
struct Maker {
    authority: Authority,
}

impl Drop for Maker {
    fn drop(&mut self) {
        // Nothing depends on it, and the next authority is made in another place.
        let _left = std::fs::remove_dir_all(self.authority.dir());
    }
}

impl Maker {
    fn key(&self, name: String, caller: Caller, node: u32) -> Result<KeyFile, String> {
        let rights = Rights::everything();
        let wanted = Wanted { name, caller, node: NodeId(node), life: LIFE, rights, again: false };
        let text = self.authority.issue(&wanted).map_err(|error| error.to_string())?;
        KeyFile::parse(Path::new(&wanted.name), text.as_bytes()).map_err(|error| error.to_string())
    }

    fn server(&self, name: String, node: u32) -> Result<Arc<Tls>, String> {
        let key = self.key(name, SERVER, node)?;
        Tls::of_server(&key, Mode::Required, None).map(Arc::new).map_err(|error| error.to_string())
    }

    fn client(&self, name: &str, caller: Caller) -> Result<Arc<Tls>, String> {
        let key = self.key(name.to_owned(), caller, 0)?;
        Tls::of_client(&key).map(Arc::new).map_err(|error| error.to_string())
    }
}

impl Keyring {
    /// For so many places, by an authority in this directory.
    pub fn make(places: usize, dir: &Path) -> Result<Self, String> {
        let maker = Maker { authority: Authority::create(dir).map_err(|error| error.to_string())? };
        let of_place = |place: usize| {
            let manager = maker.server(format!("manager-{place}"), manager_number(place))?;
            Ok::<_, String>([manager, maker.server(format!("place-{place}"), 0)?])
        };
        let servers: Result<Vec<_>, String> = (0..places).map(of_place).collect();
        Ok(Self {
            servers: servers?,
            director: Some(maker.client("director", SERVER)?),
            client: Some(maker.client("client", Caller::Client)?),
        })
    }

    /// Of the process in a place.
    pub fn server(&self, place: usize, is_manager: bool) -> Option<Arc<Tls>> {
        self.servers.get(place).map(|keys| keys[usize::from(!is_manager)].clone())
    }

    /// Of whoever asks past all faults, also what only servers may.
    pub fn director(&self) -> Option<Arc<Tls>> {
        self.director.clone()
    }

    /// Of clients.
    pub fn client(&self) -> Option<Arc<Tls>> {
        self.client.clone()
    }
}
