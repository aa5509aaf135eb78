//! How fast a machine talks to itself: what its own CPUs and memory allow, without any network.

use vmlane_bench::{Address, Hooks, Options, Server, Spec, Test};

/// Seconds of a measurement that another machine may ask for.
pub const LONGEST: f64 = 2.0;

/// Bits per second of one connection over the loopback.
pub fn measure(seconds: f64) -> Result<f64, String> {
    let address = Address::Tcp { host: "127.0.0.1".to_owned(), port: 0 };
    let server = Server::bind(&[address]).and_then(Server::spawn).map_err(|error| error.to_string())?;
    let to = server.addresses().first().cloned().ok_or("the server has no address")?;
    let spec = Spec { seconds, warmup: 0.1, ..Spec::new(Test::Stream) };
    let report = vmlane_bench::run(&to.into(), &spec, &Options::default(), &mut Hooks::default());
    report.map(|report| report.throughput_bps.unwrap_or(0.0)).map_err(|error| error.to_string())
}
