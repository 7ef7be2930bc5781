//! [`Crowd`]: who is connected to an authority, and who has to go for others.
//!
//! Invariants: there are never more than [`CONNECTIONS_MAX`], and of one network never more than [`OF_ONE_MAX`];
//! whoever comes is let in, and the oldest goes.
use std::collections::VecDeque;
use std::future::Future;
use std::net::IpAddr;
use tokio::task::{AbortHandle, JoinError, JoinSet};

/// Connections at a time.
const CONNECTIONS_MAX: usize = 256;
/// Of them from one network.
const OF_ONE_MAX: usize = 32;

/// Where somebody comes from: an address, or the network that one subscriber has (IPv6, /64).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Network(u128);

impl Network {
    pub fn of(from: IpAddr) -> Self {
        Self(match from {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
            IpAddr::V6(v6) => v6.to_bits() & !u128::from(u64::MAX),
        })
    }
}

/// Those who are connected.
#[derive(Default)]
pub struct Crowd {
    tasks: JoinSet<()>,
    oldest_first: VecDeque<(Network, AbortHandle)>,
}

impl Crowd {
    /// Lets somebody in.
    pub fn enter(&mut self, from: IpAddr, visit: impl Future<Output = ()> + Send + 'static) {
        let network = Network::of(from);
        self.oldest_first.retain(|(_, task)| !task.is_finished());
        let of_one = self.oldest_first.iter().filter(|(of, _)| *of == network).count();
        if of_one >= OF_ONE_MAX {
            let oldest = self.oldest_first.iter().position(|(of, _)| *of == network);
            self.send_away(oldest);
        } else if self.oldest_first.len() >= CONNECTIONS_MAX {
            self.send_away(Some(0));
        }
        let task = self.tasks.spawn(visit);
        self.oldest_first.push_back((network, task));
    }

    fn send_away(&mut self, place: Option<usize>) {
        if let Some((_, task)) = place.and_then(|place| self.oldest_first.remove(place)) {
            task.abort();
        }
    }

    /// The next one who is gone; none where nobody is there.
    pub async fn ended(&mut self) -> Option<Result<(), JoinError>> {
        self.tasks.join_next().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use std::sync::Arc;
    use tokio::sync::Semaphore;

    /// Strangers who connect and say nothing would keep everybody else out, or take memory without end.
    #[tokio::test]
    async fn whoever_comes_is_let_in_and_the_oldest_goes() {
        let held = Arc::new(());
        let mut crowd = Crowd::default();
        let silent = |crowd: &mut Crowd, from: IpAddr| {
            let held = held.clone();
            crowd.enter(from, async move {
                std::future::pending::<()>().await;
                drop(held);
            });
        };
        let there = |held: &Arc<()>| Arc::strong_count(held) - 1;
        let v4 = |number: u32| IpAddr::V4(Ipv4Addr::from(number));
        let network = "2001:db8:0:1::".parse::<std::net::Ipv6Addr>().expect("an address").to_bits();
        for number in 0..200u32 {
            silent(&mut crowd, IpAddr::V6((network + u128::from(number)).into()));
        }
        while there(&held) > OF_ONE_MAX {
            assert!(crowd.ended().await.is_some_and(|ended| ended.is_err()));
        }
        for number in 0..1000 {
            silent(&mut crowd, v4(number));
        }
        while there(&held) > CONNECTIONS_MAX {
            assert!(crowd.ended().await.is_some_and(|ended| ended.is_err()));
        }
        assert_eq!(there(&held), CONNECTIONS_MAX);
        let done = Arc::new(Semaphore::new(0));
        let told = done.clone();
        crowd.enter(v4(5000), async move { told.add_permits(1) });
        let _served = done.acquire().await.expect("whoever means it is served");
    }
}
