//! A server that speaks as much of OVSDB's protocol (RFC 7047) as the helper uses, with three tables in
//! memory.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use serde_json::{Map, Value, json};

type Table = BTreeMap<String, Map<String, Value>>;

#[derive(Default)]
struct State {
    tables: BTreeMap<String, Table>,
    /// Those that have asked for all rows, and get changes.
    clients: Vec<UnixStream>,
    ids: usize,
    /// What is sent to the next client before anything else.
    script: Option<Vec<u8>>,
    refuses: bool,
    echoes: usize,
}

pub struct Server {
    path: PathBuf,
    state: Arc<Mutex<State>>,
    stop: Option<(UnixListener, JoinHandle<()>)>,
}

impl Server {
    /// With a bridge of this name and datapath.
    pub fn start(path: &Path, bridge: &str, datapath: &str) -> Server {
        let state = Arc::new(Mutex::new(State::default()));
        let mut server = Server { path: path.to_owned(), state, stop: None };
        server.set(
            "Bridge",
            "bridge",
            json!({"name": bridge, "ports": ["set", []], "datapath_type": datapath}),
        );
        server.resume();
        server
    }

    pub fn resume(&mut self) {
        let listener = UnixListener::bind(&self.path).unwrap();
        let (state, accepting) = (self.state.clone(), listener.try_clone().unwrap());
        let thread = std::thread::spawn(move || {
            while let Ok((client, _)) = accepting.accept() {
                let state = state.clone();
                std::thread::spawn(move || serve(&client, &state));
            }
        });
        self.stop = Some((listener, thread));
    }

    /// Ends all connections; the rows stay.
    pub fn pause(&mut self) {
        std::fs::remove_file(&self.path).unwrap();
        let (listener, thread) = self.stop.take().unwrap();
        rustix::net::shutdown(&listener, rustix::net::Shutdown::Both).unwrap();
        thread.join().unwrap();
        self.disconnect();
    }

    pub fn disconnect(&self) {
        for client in self.state.lock().unwrap().clients.drain(..) {
            let _ = client.shutdown(std::net::Shutdown::Both);
        }
    }

    /// What the next client gets instead of answers, and then the end.
    pub fn send_instead(&self, script: &[u8]) {
        self.state.lock().unwrap().script = Some(script.to_vec());
        self.disconnect();
    }

    pub fn has_sent(&self) -> bool {
        self.state.lock().unwrap().script.is_none()
    }

    pub fn refuse(&self, on: bool) {
        self.state.lock().unwrap().refuses = on;
    }

    /// Asks all clients whether they are there. Returns how often they have answered.
    pub fn echo(&self) -> usize {
        let mut state = self.state.lock().unwrap();
        let ask = json!({"method": "echo", "params": ["x"], "id": "probe"}).to_string();
        state.clients.iter_mut().for_each(|client| drop(client.write_all(ask.as_bytes())));
        state.echoes
    }

    /// Changes columns of a row, which is made if it is not there.
    pub fn set(&self, table: &str, id: &str, columns: Value) {
        let mut state = self.state.lock().unwrap();
        let row = state.tables.entry(table.into()).or_default().entry(id.into()).or_default();
        row.extend(columns.as_object().unwrap().clone());
        let row = row.clone();
        notify(&mut state, json!({ table: { id: { "new": row } } }));
    }

    pub fn remove(&self, table: &str, id: &str) {
        let mut state = self.state.lock().unwrap();
        state.tables.get_mut(table).unwrap().remove(id);
        notify(&mut state, json!({ table: { id: { "old": {} } } }));
    }

    /// The row of this name, with its id.
    pub fn find(&self, table: &str, name: &str) -> Option<(String, Map<String, Value>)> {
        let state = self.state.lock().unwrap();
        let mut rows = state.tables.get(table)?.iter();
        rows.find(|(_, row)| row["name"] == name).map(|(id, row)| (id.clone(), row.clone()))
    }

    /// A value of an interface's `external_ids`.
    pub fn id_of(&self, interface: &str, key: &str) -> Option<String> {
        let (_, row) = self.find("Interface", interface)?;
        let pairs = row["external_ids"][1].as_array()?;
        pairs.iter().find(|pair| pair[0] == key).map(|pair| pair[1].as_str().unwrap().to_owned())
    }

    /// The same with a key more, as OVN adds them.
    pub fn add_id(&self, interface: &str, key: &str, value: &str) {
        let (id, mut row) = self.find("Interface", interface).unwrap();
        row["external_ids"][1].as_array_mut().unwrap().push(json!([key, value]));
        self.set("Interface", &id, row.into());
    }

    pub fn ports(&self) -> usize {
        self.find("Bridge", "br-int").map_or(0, |(_, row)| row["ports"][1].as_array().unwrap().len())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.stop.is_some() {
            self.pause();
        }
    }
}

fn notify(state: &mut State, tables: Value) {
    let update = json!({"method": "update", "params": ["vmlane", tables], "id": null}).to_string();
    state.clients.iter_mut().for_each(|client| drop(client.write_all(update.as_bytes())));
}

fn serve(client: &UnixStream, state: &Mutex<State>) {
    let mut writer = client.try_clone().unwrap();
    if let Some(script) = state.lock().unwrap().script.take() {
        let _ = writer.write_all(&script);
        let _ = client.shutdown(std::net::Shutdown::Both);
        return;
    }
    for message in serde_json::Deserializer::from_reader(client).into_iter::<Value>() {
        let Ok(message) = message else { return };
        let mut state = state.lock().unwrap();
        let result = match message["method"].as_str() {
            Some("monitor") => {
                state.clients.push(client.try_clone().unwrap());
                let rows =
                    |table: &Table| table.iter().map(|(id, row)| (id.clone(), json!({"new": row}))).collect();
                let all: Map<String, Value> = state
                    .tables
                    .iter()
                    .map(|(name, table)| (name.clone(), Value::Object(rows(table))))
                    .collect();
                all.into()
            }
            Some("transact") if state.refuses => {
                json!([{"error": "constraint violation", "details": "on request"}])
            }
            Some("transact") => transact(&mut state, &message["params"].as_array().unwrap()[1..]),
            Some("echo") => message["params"].clone(),
            _ => {
                state.echoes += usize::from(message["id"] == "probe");
                continue;
            }
        };
        drop(state);
        let answer = json!({"id": message["id"], "error": null, "result": result}).to_string();
        if writer.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

fn transact(state: &mut State, operations: &[Value]) -> Value {
    let mut named = BTreeMap::new();
    let mut results = Vec::new();
    for operation in operations {
        let table = operation["table"].as_str().unwrap().to_owned();
        if operation["op"] == "insert" {
            state.ids += 1;
            let id = format!("id-{}", state.ids);
            named.insert(operation["uuid-name"].as_str().unwrap().to_owned(), id.clone());
            let row = resolve(&operation["row"], &named);
            state
                .tables
                .entry(table.clone())
                .or_default()
                .insert(id.clone(), row.as_object().unwrap().clone());
            notify(state, json!({ &table: { id: { "new": row } } }));
            results.push(json!({}));
            continue;
        }
        let id = operation["where"][0][2][1].as_str().unwrap().to_owned();
        let Some(row) = state.tables.get_mut(&table).and_then(|rows| rows.get_mut(&id)) else {
            results.push(json!({ "count": 0 }));
            continue;
        };
        match operation["op"].as_str().unwrap() {
            "update" => row.extend(operation["row"].as_object().unwrap().clone()),
            "mutate" => {
                operation["mutations"].as_array().unwrap().iter().for_each(|one| mutate(row, one, &named))
            }
            other => panic!("{other}"),
        }
        let row = row.clone();
        notify(state, json!({ &table: { id: { "new": row } } }));
        results.push(json!({ "count": 1 }));
    }
    collect(state);
    results.into()
}

/// What no bridge has any more is removed, as the database does.
fn collect(state: &mut State) {
    let of = |table: &Table, column: &str| -> Vec<String> {
        let ids = table.values().flat_map(|row| match &row[column][1] {
            Value::Array(list) => list.iter().map(|one| one[1].as_str().unwrap().to_owned()).collect(),
            one => vec![one.as_str().unwrap().to_owned()],
        });
        ids.collect()
    };
    for (table, parent, column) in [("Port", "Bridge", "ports"), ("Interface", "Port", "interfaces")] {
        let kept = of(&state.tables[parent], column);
        let rows = state.tables.entry(table.into()).or_default();
        let gone: Vec<String> = rows.keys().filter(|id| !kept.contains(*id)).cloned().collect();
        gone.iter().for_each(|id| drop(rows.remove(id)));
        gone.iter().for_each(|id| notify(state, json!({ table: { id: { "old": {} } } })));
    }
}

fn resolve(value: &Value, named: &BTreeMap<String, String>) -> Value {
    match value {
        Value::Array(list) if list.first() == Some(&json!("named-uuid")) => {
            json!(["uuid", named[list[1].as_str().unwrap()]])
        }
        Value::Array(list) => list.iter().map(|one| resolve(one, named)).collect(),
        Value::Object(row) => {
            row.iter().map(|(key, value)| (key.clone(), resolve(value, named))).collect::<Map<_, _>>().into()
        }
        other => other.clone(),
    }
}

/// On sets of ids, and maps: a key that is there is not inserted.
fn mutate(row: &mut Map<String, Value>, mutation: &Value, named: &BTreeMap<String, String>) {
    let value = resolve(&mutation[2], named);
    let list = match value[0].as_str() {
        Some("set" | "map") => value[1].as_array().unwrap().clone(),
        _ => vec![value],
    };
    let column = row[mutation[0].as_str().unwrap()][1].as_array_mut().unwrap();
    let is_map = mutation[0] == "external_ids";
    if mutation[1] == "delete" {
        column.retain(|one| !list.contains(if is_map { &one[0] } else { one }));
    } else {
        for new in list {
            if !column.iter().any(|one| if is_map { one[0] == new[0] } else { *one == new }) {
                column.push(new);
            }
        }
    }
}
