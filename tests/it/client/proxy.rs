//! A TCP proxy that can fall silent: the sockets stay open, nothing goes through.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Forwards to one address.
pub struct Proxy {
    pub address: SocketAddr,
    /// Connections accepted before the generation that is forwarded are silent.
    forwarded: watch::Sender<u64>,
}

impl Proxy {
    pub async fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (forwarded, generation) = watch::channel(0);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(to).await else { continue };
                let (near_in, near_out) = near.into_split();
                let (far_in, far_out) = far.into_split();
                let born = *generation.borrow();
                tokio::spawn(forward(near_in, far_out, generation.clone(), born));
                tokio::spawn(forward(far_in, near_out, generation.clone(), born));
            }
        });
        Self { address, forwarded }
    }

    /// From now on nothing of the present connections goes through, in neither direction.
    pub fn fall_silent(&self) {
        self.forwarded.send_modify(|generation| *generation += 1);
    }
}

async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut generation: watch::Receiver<u64>,
    born: u64,
) {
    let mut buffer = [0; 8192];
    loop {
        let read = tokio::select! {
            biased;
            silent = silenced(&mut generation, born) => {
                // Keeps both sockets, reads and writes nothing.
                if silent {
                    std::future::pending::<()>().await;
                }
                return;
            }
            read = from.read(&mut buffer) => read,
        };
        match read {
            Ok(read) if read > 0 => {
                if to.write_all(&buffer[..read]).await.is_err() {
                    return;
                }
            }
            _ => return,
        }
    }
}

/// Waits for the silence; `false` if the proxy is gone.
async fn silenced(generation: &mut watch::Receiver<u64>, born: u64) -> bool {
    generation.wait_for(|now| *now > born).await.is_ok()
}
