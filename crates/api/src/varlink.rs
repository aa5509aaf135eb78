//! The calls in Varlink's framing (<https://varlink.org>): objects of JSON that end with a zero byte, and a
//! description of the interface, so that `varlinkctl` and every Varlink library can ask the daemon.
//!
//! A client makes a [`request`] and reads what was [`answered`]; the daemon [`understand`]s it and has it
//! [`succeeded`] or [`failed`]. Nothing here decides who may ask what.

mod description;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

pub use self::description::description;
use crate::answer::{ErrorCode, Failure};
use crate::calls::{Call, Method};

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

/// A message of a client. Keys that later versions of Varlink may add are ignored.
#[derive(Serialize, Deserialize)]
struct Request<P> {
    method: String,
    #[serde(default)]
    parameters: Option<P>,
    /// Several answers may come.
    #[serde(default)]
    more: bool,
    /// No answer is wanted.
    #[serde(default)]
    oneway: bool,
    #[serde(default)]
    upgrade: bool,
}

/// A call as a message.
pub fn request<M: Method>(call: &M) -> Vec<u8> {
    let method = format!("{INTERFACE}.{}", M::ROW.name);
    message(&Request { method, parameters: Some(call), more: M::ROW.lasts, oneway: false, upgrade: false })
}

/// What a client's message asks for.
#[derive(Debug, PartialEq)]
pub struct Understood {
    /// The client wants no answer.
    pub oneway: bool,
    /// `Err` is the answer: the framing is asked, or the request is wrong.
    pub call: Result<Call, Vec<u8>>,
}

/// Understands a message, without the zero byte at its end. `version` is the program's.
pub fn understand(message: &[u8], version: &str) -> Understood {
    // An object, and no list of its values.
    let object = serde_json::from_slice(message).map(Value::Object);
    match object.and_then(serde_json::from_value::<Request<Map<String, Value>>>) {
        Ok(request) => Understood { oneway: request.oneway, call: request.call(version) },
        Err(error) => {
            let message = format!("this is no Varlink request: {error}");
            let failure = Failure { code: ErrorCode::BadRequest, message };
            Understood { oneway: false, call: Err(failed(&failure)) }
        }
    }
}

impl Request<Map<String, Value>> {
    fn call(self, version: &str) -> Result<Call, Vec<u8>> {
        if self.upgrade {
            return Err(error(SERVICE, "InvalidParameter", json!({"parameter": "upgrade"})));
        }
        let parameters = self.parameters.unwrap_or_default();
        let (interface, name) = self.method.rsplit_once('.').unwrap_or((&self.method, ""));
        let not_found = || error(SERVICE, "MethodNotFound", json!({"method": self.method}));
        match (interface, name) {
            (SERVICE, "GetInfo") => Err(info(version)),
            (SERVICE, "GetInterfaceDescription") => Err(describe(&parameters)),
            (INTERFACE, _) => {
                let call = Call::understand(name, parameters).ok_or_else(not_found)?;
                let call = call.map_err(|failure| failed(&failure))?;
                if call.row().lasts && (!self.more || self.oneway) {
                    return Err(error(SERVICE, "ExpectedMore", json!({})));
                }
                Ok(call)
            }
            (SERVICE, _) => Err(not_found()),
            _ => Err(error(SERVICE, "InterfaceNotFound", json!({"interface": interface}))),
        }
    }
}

fn info(version: &str) -> Vec<u8> {
    let info = json!({
        "vendor": "vmlane",
        "product": "vmlane daemon",
        "version": version,
        "url": "",
        "interfaces": [SERVICE, INTERFACE],
    });
    succeeded(&info.to_string(), false)
}

fn describe(parameters: &Map<String, Value>) -> Vec<u8> {
    let text = match parameters.get("interface").and_then(Value::as_str) {
        Some(INTERFACE) => description(),
        Some(SERVICE) => SERVICE_DESCRIPTION,
        Some(other) => return error(SERVICE, "InterfaceNotFound", json!({"interface": other})),
        None => return error(SERVICE, "InvalidParameter", json!({"parameter": "interface"})),
    };
    succeeded(&json!({"description": text}).to_string(), false)
}

/// The answer to a request that was carried out, as JSON; with `continues`, another one follows.
pub fn succeeded(answer: &str, continues: bool) -> Vec<u8> {
    let continues = if continues { ",\"continues\":true" } else { "" };
    format!("{{\"parameters\":{answer}{continues}}}\0").into_bytes()
}

/// The answer to a request that was not.
pub fn failed(failure: &Failure) -> Vec<u8> {
    error(INTERFACE, &failure.code.name(), json!({"message": failure.message}))
}

fn error(interface: &str, name: &str, parameters: Value) -> Vec<u8> {
    message(&json!({"error": format!("{interface}.{name}"), "parameters": parameters}))
}

/// Anything of the protocol, all of which has JSON.
fn message(content: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(content).unwrap_or_default();
    bytes.push(0);
    bytes
}

/// The contents of an answer.
#[derive(Debug, PartialEq)]
pub enum Answered<T> {
    Ok(T),
    Refused(Failure),
    /// Nothing that this program knows.
    Otherwise(String),
}

/// Understands an answer, without the zero byte at its end.
pub fn answered<T: DeserializeOwned>(answer: &[u8]) -> Answered<T> {
    #[derive(Deserialize)]
    struct Outcome {
        error: Option<String>,
    }
    #[derive(Deserialize)]
    struct Parameters<T> {
        parameters: T,
    }
    #[derive(Deserialize)]
    struct Why {
        message: String,
    }
    let understood = || -> serde_json::Result<Answered<T>> {
        let Some(error) = serde_json::from_slice::<Outcome>(answer)?.error else {
            return Ok(Answered::Ok(serde_json::from_slice::<Parameters<T>>(answer)?.parameters));
        };
        let name = error.strip_prefix(INTERFACE).and_then(|name| name.strip_prefix('.'));
        let Some(code) = ErrorCode::ALL.into_iter().find(|code| name == Some(&code.name())) else {
            return Ok(Answered::Otherwise(error));
        };
        let Why { message } = serde_json::from_slice::<Parameters<Why>>(answer)?.parameters;
        Ok(Answered::Refused(Failure { code, message }))
    };
    understood().unwrap_or_else(|error| Answered::Otherwise(error.to_string()))
}

#[cfg(test)]
mod tests;
