//! The console as a server: what it needs, and where it listens.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use whimbrel_control::fleet::Fleet;
use whimbrel_control::lobby::Guesses;
use whimbrel_control::web::{Limits, Listener};
use whimbrel_engine::error::{Error, Result, Side};

use crate::audit::Audit;
use crate::counted::Counted;
use crate::inner::{ConsoleOptions, Inner};
use crate::mover::Mover;
use crate::plans::Plans;
use crate::remembered::Remembered;
use crate::runs::Runs;
use crate::snapshot::Watched;
use crate::tokens::Tokens;
use crate::{reading, routes};

/// How many connections there may be. A browser has one that lasts, and a few that come and go.
pub const CONNECTIONS_MAX: usize = 128;

/// What the listener allows. Its answers may last: they are streams.
const LIMITS: Limits = Limits {
    connections: CONNECTIONS_MAX,
    of_one_address: 64,
    request_time: Duration::from_secs(10),
    connection_time: None,
};

/// How long orders under way may take to come to their end when the console stops.
const GRACE: Duration = Duration::from_secs(5);

/// A console that listens.
pub struct Console {
    listener: Listener,
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Console {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Console").field("listener", &self.listener).finish_non_exhaustive()
    }
}

impl Console {
    /// Begins to listen. Requests are answered once [`Console::serve`] runs.
    ///
    /// # Errors
    /// `Options` where tokens would travel in clear, or there are none; `Own` where the address cannot be
    /// listened on, or the tokens not be read.
    pub async fn bind(
        options: ConsoleOptions,
        mover: Option<Mover>,
        fleet: Option<Fleet>,
        stop: CancellationToken,
    ) -> Result<Console> {
        let refused = |what: String| Error::options(Side::Own, "open the console", what);
        if options.tls.is_none() && !options.listen.ip().to_canonical().is_loopback() {
            let what = format!("on {} tokens would travel in clear", options.listen);
            return Err(refused(what).with_remedy(
                "give it a certificate, or listen on 127.0.0.1 and reach it by ssh -L or a proxy",
            ));
        }
        let tokens = Tokens::of(&options.state_dir);
        if tokens.list()?.is_empty() {
            return Err(refused("nobody could log in: there is no token".to_owned())
                .with_remedy("make one: whimbrel token add NAME --role administer"));
        }
        let listener = Listener::bind(options.listen, LIMITS, options.tls.clone()).await?;
        let inner = Inner {
            audit: Audit::of(&options.state_dir),
            runs: Arc::new(Runs::new(&options.state_dir)),
            remembered: Remembered::of(&options.state_dir),
            options,
            mover,
            fleet,
            tokens,
            guesses: Guesses::default(),
            counted: Counted::default(),
            watched: Watched::default(),
            plans: Plans::default(),
            orders: Mutex::new(JoinSet::new()),
            last_survey: tokio::sync::Mutex::default(),
            planning: tokio::sync::Mutex::default(),
            stop,
        };
        Ok(Console { listener, inner: Arc::new(inner) })
    }

    /// Where it is reached by a browser on this machine.
    ///
    /// # Errors
    /// `Own` where the system does not report it.
    pub fn url(&self) -> Result<String> {
        let scheme = if self.inner.options.tls.is_some() { "https" } else { "http" };
        Ok(format!("{scheme}://{}/", self.listener.address()?))
    }

    /// Answers until it is stopped.
    pub async fn serve(self) {
        let Console { listener, inner } = self;
        let stop = inner.stop.clone();
        tokio::join!(listener.serve(routes::router(inner.clone()), stop), reading::run(&inner));
        let mut orders = std::mem::take(&mut *inner.orders.lock());
        let ended = async { while orders.join_next().await.is_some() {} };
        if tokio::time::timeout(GRACE, ended).await.is_err() {
            tracing::warn!("an order was still under way when the console stopped");
        }
    }
}
