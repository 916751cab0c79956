//! Why there is no link, as an operator has to read it.

use std::path::PathBuf;

/// Why the broker cannot be connected to. The text names the server or file and says
/// what to do.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// A URL of the configuration is none of a NATS server.
    #[error("nats.url {url}: {text}; expected nats://HOST:PORT or tls://HOST:PORT")]
    Url {
        /// The URL, without a password.
        url: String,
        /// What is wrong with it.
        text: String,
    },
    /// The credentials file cannot be read or holds no credentials.
    #[error("nats.credentials_file {}: {text}; expected a file of `nsc generate creds`", .file.display())]
    Credentials {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        text: String,
    },
    /// The server refused this client.
    #[error(
        "nats {urls}: refused: {text}; check nats.credentials_file and the account's permissions"
    )]
    Refused {
        /// The servers that were tried.
        urls: String,
        /// What the server said.
        text: String,
    },
    /// No server answered; trying again later may help.
    #[error("nats {urls}: {text}; check that the server runs and can be reached")]
    Unreachable {
        /// The servers that were tried.
        urls: String,
        /// What went wrong.
        text: String,
    },
}

impl BrokerError {
    /// Whether trying again without a change of the configuration can help.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }
}
