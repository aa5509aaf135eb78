//! The same calls in Varlink's framing (<https://varlink.org>): objects of JSON that end with a zero byte, and a description
//! of the interface, so that `varlinkctl` and every Varlink library can ask the daemon.
//!
//! A request is `{"method":"io.vmlane.Control.Status","parameters":{}}`; its parameters and the answer's are those of the framing
//! by lines. [`understand`] makes a [`Call`] of it, or answers what concerns the framing only. Nothing here decides who may ask what.

mod description;
mod trace;

use serde::Deserialize;
use serde_json::{Map, Value, json};

pub use self::description::description;
use crate::answer::{ErrorCode, Failure};
use crate::calls::{Call, METHODS};

/// The interface with all calls.
pub const INTERFACE: &str = "io.vmlane.Control";
/// The interface that each service has.
const SERVICE: &str = "org.varlink.service";
/// Its description, which is the same for all services.
const SERVICE_DESCRIPTION: &str = "# What every service has.
interface org.varlink.service

# Who serves, and which interfaces it has.
method GetInfo() -> (
  vendor: string,
  product: string,
  version: string,
  url: string,
  interfaces: []string
)

# The description of an interface.
method GetInterfaceDescription(interface: string) -> (description: string)

error InterfaceNotFound (interface: string)
error MethodNotFound (method: string)
error MethodNotImplemented (method: string)
error InvalidParameter (parameter: string)
error PermissionDenied ()
error ExpectedMore ()
";

/// A request that was understood, as far as it could be.
#[derive(Debug, PartialEq)]
pub struct Request {
    /// The client wants no answer.
    pub oneway: bool,
    pub wants: Wants,
}

/// What a request wants.
#[derive(Debug, PartialEq)]
pub enum Wants {
    /// The daemon is asked.
    Call(Call),
    /// This is the answer: the framing is asked, or the request is wrong.
    Answered(Vec<u8>),
}

/// A message of a client. Keys that later versions of Varlink may add are ignored.
#[derive(Deserialize)]
struct Message {
    method: String,
    #[serde(default)]
    parameters: Option<Map<String, Value>>,
    #[serde(default)]
    oneway: bool,
    // `more` allows several answers; each of these calls has one, so it changes nothing.
    #[serde(default)]
    upgrade: bool,
}

/// Understands a message, without the zero byte at its end. `version` is the program's.
pub fn understand(message: &[u8], version: &str) -> Request {
    let message: Message = match serde_json::from_slice(message) {
        Ok(message) => message,
        Err(error) => {
            let failure = bad_request(format!("this is no Varlink request: {error}"));
            return Request { oneway: false, wants: Wants::Answered(failed(&failure)) };
        }
    };
    let oneway = message.oneway;
    Request { oneway, wants: message.wants(version).unwrap_or_else(Wants::Answered) }
}

impl Message {
    /// `Err` is the answer to a request that is wrong.
    fn wants(self, version: &str) -> Result<Wants, Vec<u8>> {
        if self.upgrade {
            return Err(error(SERVICE, "InvalidParameter", json!({"parameter": "upgrade"})));
        }
        let parameters = self.parameters.unwrap_or_default();
        let (interface, name) = self.method.rsplit_once('.').unwrap_or((&self.method, ""));
        let not_found = || error(SERVICE, "MethodNotFound", json!({"method": self.method}));
        match (interface, name) {
            (SERVICE, "GetInfo") => Ok(Wants::Answered(info(version))),
            (SERVICE, "GetInterfaceDescription") => describe(&parameters).map(Wants::Answered),
            (INTERFACE, "Capture") => {
                Err(error(SERVICE, "MethodNotImplemented", json!({"method": self.method})))
            }
            (INTERFACE, _) => {
                let method = METHODS.iter().find(|method| camel(method) == name).ok_or_else(not_found)?;
                call(method, parameters).map(Wants::Call).map_err(|failure| failed(&failure))
            }
            (SERVICE, _) => Err(not_found()),
            _ => Err(error(SERVICE, "InterfaceNotFound", json!({"interface": interface}))),
        }
    }
}

fn call(method: &str, mut parameters: Map<String, Value>) -> Result<Call, Failure> {
    if parameters.insert("method".into(), method.into()).is_some() {
        return Err(bad_request(format!("{method}: unknown field `method`")));
    }
    serde_json::from_value(parameters.into()).map_err(|error| bad_request(format!("{method}: {error}")))
}

fn bad_request(message: String) -> Failure {
    Failure { code: ErrorCode::BadRequest, message }
}

fn info(version: &str) -> Vec<u8> {
    let info = json!({
        "vendor": "vmlane",
        "product": "vmlane daemon",
        "version": version,
        "url": "",
        "interfaces": [SERVICE, INTERFACE],
    });
    succeeded(&info.to_string())
}

fn describe(parameters: &Map<String, Value>) -> Result<Vec<u8>, Vec<u8>> {
    let text = match parameters.get("interface").and_then(Value::as_str) {
        Some(INTERFACE) => description(),
        Some(SERVICE) => SERVICE_DESCRIPTION,
        Some(other) => return Err(error(SERVICE, "InterfaceNotFound", json!({"interface": other}))),
        None => return Err(error(SERVICE, "InvalidParameter", json!({"parameter": "interface"}))),
    };
    Ok(succeeded(&json!({"description": text}).to_string()))
}

/// The answer to a request that was carried out: `body` is what the framing by lines has under `ok`.
pub fn succeeded(body: &str) -> Vec<u8> {
    format!("{{\"parameters\":{body}}}\0").into_bytes()
}

/// The answer to a request that was not.
pub fn failed(failure: &Failure) -> Vec<u8> {
    error(INTERFACE, &camel(failure.code.name()), json!({"message": failure.message}))
}

fn error(interface: &str, name: &str, parameters: Value) -> Vec<u8> {
    let mut bytes =
        json!({"error": format!("{interface}.{name}"), "parameters": parameters}).to_string().into_bytes();
    bytes.push(0);
    bytes
}

/// `vm_add` as `VmAdd`.
fn camel(name: &str) -> String {
    let word = |word: &str| {
        let (first, rest) = word.split_at(word.len().min(1));
        first.to_ascii_uppercase() + rest
    };
    name.split('_').map(word).collect()
}

#[cfg(test)]
mod tests;
