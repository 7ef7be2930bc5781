//! What supervisor, workers and commands say to each other.
use crate::failure::{Failure, Result};
use crate::session::handshake::Agreed;
use crate::spec::MountSpec;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// From the supervisor to its worker.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToWorker {
    /// Connect to the cluster. If not `first`, go on trying.
    Hello {
        spec: Box<MountSpec>,
        first: bool,
    },
    /// Read requests. The connection and the memory of open files follow.
    Serve {
        agreed: Agreed,
    },
    Ask {
        id: u64,
        what: Ask,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    Status,
    /// Make everything durable.
    Sync,
    /// Sync, read nothing more, note what is open. A failure of one that still serves leaves everything as it was.
    HandOver,
    /// After handing over: end the session and the process.
    End,
}

/// From the worker to its supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromWorker {
    /// The cluster is reached, and the volume and the directory are there.
    Ready,
    Failed(Failure),
    /// Requests are read.
    Serving {
        restored: usize,
        lost: usize,
        unsynced: usize,
    },
    Answer {
        id: u64,
        result: Result<Value>,
        /// Requests are read as before.
        #[serde(default)]
        serves: bool,
    },
    /// The kernel ended the connection; all is synced.
    Unmounted,
}

/// From a command to the supervisor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    Status,
    Unmount {
        lazy: bool,
    },
    /// Replace the worker by one that runs this program.
    Upgrade {
        program: std::path::PathBuf,
    },
}

/// The answer to a command.
pub type Answer = Result<Value>;

/// To the command that started the supervisor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Started {
    pub pid: u32,
    pub worker: Option<u32>,
}
