//! The interface over HTTP, and the document that describes it (OpenAPI 3.1).

use serde_json::{Map, Value, json};

use crate::tokens::Role;

/// One thing that can be asked.
#[derive(Debug, Clone, Copy)]
pub struct Operation {
    /// `GET` or `POST`.
    pub method: &'static str,
    /// Where, below `/api/v1`.
    pub path: &'static str,
    /// The role that it needs; `None` where no token is needed.
    pub needs: Option<Role>,
    /// What it is, in a line.
    pub summary: &'static str,
    /// The fields of its body, each with its JSON schema, and whether it has to be there.
    pub fields: &'static [Field],
    /// The JSON schema of what it answers.
    pub answer: &'static str,
}

/// A field of a body.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    name: &'static str,
    schema: &'static str,
    required: bool,
}

const fn must(name: &'static str, schema: &'static str) -> Field {
    Field { name, schema, required: true }
}

const fn may(name: &'static str, schema: &'static str) -> Field {
    Field { name, schema, required: false }
}

const TEXT: &str = r#"{"type": "string"}"#;
const FLAG: &str = r#"{"type": "boolean"}"#;
const COUNT: &str = r#"{"type": "integer", "minimum": 1, "maximum": 9007199254740991}"#;
const BOUND: &str = r#"{"type": ["integer", "null"], "minimum": 0, "maximum": 9007199254740991}"#;
const MAYBE_TEXT: &str = r#"{"type": ["string", "null"]}"#;

/// What is answered: parts that have a name stand among the components.
const OBJECT: &str = r#"{"type": "object"}"#;
const EVENTS: &str = r#"{"type": "string"}"#;
const RATES: &str = r##"{
    "type": "object", "required": ["job", "rates"],
    "properties": {"job": {"type": "string"}, "rates": {"$ref": "#/components/schemas/Rates"}}
}"##;
const ORDERED: &str = r#"{
    "type": "object", "required": ["job"],
    "properties": {
        "job": {"type": "string"},
        "state": {"enum": ["asked", "cancelled"],
            "description": "asked: it was asked to end; whether it still could, its phase says then"}
    }
}"#;
const BEGUN: &str = r#"{
    "type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}
}"#;
const GONE_ON: &str = r#"{
    "type": "object", "required": ["name", "warning"],
    "properties": {"name": {"type": "string"}, "warning": {"type": ["string", "null"]}}
}"#;
const CUT_OVER: &str = r#"{
    "type": "object", "required": ["text"],
    "properties": {
        "text": {"type": "array", "items": {"type": "string"}},
        "outcome": {"type": "object", "description": "the report, as whimbrel cutover --json has it"},
        "scheduled": {"type": "string", "description": "when it is due, if it was scheduled"}
    }
}"#;

const fn get(
    path: &'static str,
    needs: Option<Role>,
    summary: &'static str,
    answer: &'static str,
) -> Operation {
    Operation { method: "GET", path, needs, summary, fields: &[], answer }
}

const fn post(
    path: &'static str,
    needs: Role,
    summary: &'static str,
    fields: &'static [Field],
    answer: &'static str,
) -> Operation {
    Operation { method: "POST", path, needs: Some(needs), summary, fields, answer }
}

const VIEW: Option<Role> = Some(Role::View);
const ADMINISTER: Option<Role> = Some(Role::Administer);

/// All of it.
pub const OPERATIONS: &[Operation] = &[
    get("/openapi.json", None, "This document", OBJECT),
    get(
        "/me",
        VIEW,
        "Whose token this is, and what this console has",
        r#"{
            "type": "object", "required": ["name", "role", "version", "cluster", "fleet", "now_ms"],
            "properties": {
                "name": {"type": "string"}, "role": {"enum": ["view", "operate", "administer"]},
                "version": {"type": "string"}, "cluster": {"type": ["string", "null"]},
                "fleet": {"type": "boolean"}, "now_ms": {"type": "integer"}
            }
        }"#,
    ),
    get(
        "/stream",
        VIEW,
        "How everything stands, and each second what has changed: server-sent events",
        EVENTS,
    ),
    get(
        "/jobs",
        VIEW,
        "All jobs",
        r##"{
            "type": "object", "required": ["now_ms", "jobs"],
            "properties": {
                "now_ms": {"type": "integer"},
                "jobs": {"type": "array", "items": {"$ref": "#/components/schemas/Job"}}
            }
        }"##,
    ),
    get(
        "/jobs/{name}",
        VIEW,
        "A job, its events, and its report once it has ended",
        r##"{
            "type": "object", "required": ["now_ms", "job", "details", "events", "report", "remembered"],
            "properties": {
                "now_ms": {"type": "integer"},
                "job": {"$ref": "#/components/schemas/Job"},
                "details": {"type": ["object", "null"]},
                "events": {"type": "array", "items": {
                    "type": "object", "required": ["at_s", "event", "text"],
                    "properties": {
                        "at_s": {"type": "integer"}, "event": {"type": "string"}, "text": {"type": "string"}
                    }
                }},
                "report": {"type": ["object", "null"]},
                "remembered": {"type": ["object", "null"]}
            }
        }"##,
    ),
    get(
        "/cluster",
        VIEW,
        "The cluster: shards, sizes, load, and what is wrong with it",
        r#"{"type": "object", "required": ["now_ms"], "properties": {"now_ms": {"type": "integer"}}}"#,
    ),
    get("/cluster/repair", VIEW, "What a repair would do; nothing is changed", OBJECT),
    get("/fleet", VIEW, "The fleet: members, leases, partitions", OBJECT),
    post("/jobs/{name}/pause", Role::Operate, "Move no more keys for now", &[], RATES),
    post(
        "/jobs/{name}/resume",
        Role::Operate,
        "Move keys again; not before their time of the day, where it has one (paused_until_s)",
        &[],
        RATES,
    ),
    post(
        "/jobs/{name}/set",
        Role::Operate,
        "Move keys faster or slower; what is absent stays, null is no bound. max_lag is written as 64MiB or \
            5s, max_load as 60%, between as 01:00-05:00, lanes as 8 or 2:8",
        &[
            may("rate_keys", BOUND),
            may("rate_bytes", BOUND),
            may("max_latency_ms", BOUND),
            may("max_lag", MAYBE_TEXT),
            may("max_load", MAYBE_TEXT),
            may("between", MAYBE_TEXT),
            may("memory_bytes", COUNT),
            may("lanes", TEXT),
            may("max_pause_ms", r#"{"type": "integer", "minimum": 1, "maximum": 60000}"#),
        ],
        RATES,
    ),
    post(
        "/jobs/{name}/cancel",
        Role::Operate,
        "End a job, and undo what can be undone; confirm is its name",
        &[must("confirm", TEXT)],
        ORDERED,
    ),
    post(
        "/jobs/{name}/go-on",
        Role::Administer,
        "Go on with a copy, a sync or a verification that was interrupted; confirm is its name",
        &[must("confirm", TEXT), may("source_password", MAYBE_TEXT), may("target_password", MAYBE_TEXT)],
        GONE_ON,
    ),
    post(
        "/plans",
        Role::Operate,
        "Plan moves of slots; nothing is changed",
        &[
            must("kind", r#"{"enum": ["rebalance", "drain", "reshard"]}"#),
            may("by", r#"{"enum": ["slots", "keys", "bytes", "ops"]}"#),
            may("use_empty", FLAG),
            may("threshold", r#"{"type": "number", "minimum": 0, "maximum": 100}"#),
            may("node", TEXT),
            may("slots", TEXT),
            may("to", TEXT),
        ],
        OBJECT,
    ),
    post(
        "/plans/{id}/approve",
        Role::Operate,
        "Carry a plan out as it was shown; confirm is the cluster's address",
        &[must("confirm", TEXT)],
        OBJECT,
    ),
    post(
        "/plans/{id}/cancel",
        Role::Operate,
        "End all jobs of a plan that have not ended; confirm is the cluster's address. Where jobs are named \
            and others of the plan have not ended, nothing is cancelled",
        &[must("confirm", TEXT), may("jobs", r#"{"type": ["array", "null"], "items": {"type": "string"}}"#)],
        r#"{
            "type": "object", "required": ["jobs", "refused"],
            "properties": {
                "jobs": {"type": "array", "items": {"type": "string"}},
                "refused": {"type": "array", "items": {"type": "object"}}
            }
        }"#,
    ),
    post(
        "/jobs/{name}/cutover",
        Role::Administer,
        "Have the target of a sync take over, or find out whether it could; confirm is the job's name. With \
            at, between or when_ready it is scheduled",
        &[
            may("confirm", MAYBE_TEXT),
            may("dry_run", FLAG),
            may(
                "fence",
                r#"{"enum": ["none", "pause", "acl", "readonly-replica", "external", "front"],
                    "default": "none"}"#,
            ),
            may("max_pause_ms", r#"{"type": "integer", "minimum": 1, "maximum": 60000}"#),
            may("compare", r#"{"enum": ["none", "counts", "sample", "full"]}"#),
            may("reverse", FLAG),
            may("back", FLAG),
            may("fence_for_ms", COUNT),
            may("quiet_for_ms", COUNT),
            may("wait_for_quiet_ms", COUNT),
            may("at", MAYBE_TEXT),
            may("between", MAYBE_TEXT),
            may("when_ready", FLAG),
        ],
        CUT_OVER,
    ),
    post("/jobs/{name}/cutover/withdraw", Role::Administer, "Take back a scheduled cutover", &[], ORDERED),
    post(
        "/jobs",
        Role::Administer,
        "Begin a copy, a sync or a verification; confirm is the target's address where it writes",
        &[
            must("kind", r#"{"enum": ["sync", "verify", "copy"]}"#),
            must("source", TEXT),
            must("target", TEXT),
            may("source_password", MAYBE_TEXT),
            may("target_password", MAYBE_TEXT),
            may("confirm", MAYBE_TEXT),
            may("mirror", FLAG),
            may("replace", FLAG),
            may("resume", FLAG),
            may("rate_keys", BOUND),
            may("match", r#"{"type": "array", "items": {"type": "string"}}"#),
        ],
        BEGUN,
    ),
    post(
        "/assessments",
        Role::Administer,
        "Look at a source, and at a target where there is one; nothing is changed",
        &[
            must("source", TEXT),
            may("target", MAYBE_TEXT),
            may("source_password", MAYBE_TEXT),
            may("target_password", MAYBE_TEXT),
        ],
        r#"{"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}}"#,
    ),
    get(
        "/assessments/{id}",
        ADMINISTER,
        "How an assessment stands",
        r#"{
            "type": "object", "required": ["state", "report", "text"],
            "properties": {
                "state": {"enum": ["running", "done", "failed"]},
                "report": {"type": ["object", "null"]},
                "text": {"type": "array", "items": {"type": "string"}}
            }
        }"#,
    ),
    get(
        "/audit",
        ADMINISTER,
        "Who has ordered what, with the result: the newest first",
        r#"{
            "type": "object", "required": ["entries"],
            "properties": {"entries": {"type": "array", "items": {
                "type": "object", "required": ["at_ms", "who", "role", "from", "order", "target"],
                "properties": {
                    "at_ms": {"type": "integer"}, "who": {"type": "string"},
                    "role": {"enum": ["view", "operate", "administer"]}, "from": {"type": "string"},
                    "order": {"type": "string"}, "target": {"type": "string"},
                    "outcome": {"type": ["string", "null"]}
                }
            }}}
        }"#,
    ),
];

/// A job, as lists and pages have it.
const JOB: &str = r##"{
    "type": "object",
    "required": ["name", "kind", "state", "phase", "message", "source", "target", "running", "ended",
        "created_s", "updated_s", "keys", "keys_moved", "percent", "can"],
    "properties": {
        "name": {"type": "string", "description": "what the paths take"},
        "given_name": {"type": ["string", "null"], "description": "what its user calls it"},
        "whole": {"type": "boolean", "description": "of a comparison: it is one of all keys, in full"},
        "run_of": {"type": ["string", "null"], "description": "the name it had while it ran"},
        "kind": {"enum": ["move", "copy", "verify", "sync", "front"]},
        "state": {"type": "string", "description": "running, interrupted or ended"},
        "state_in_words": {"type": "string"},
        "phase": {"type": "string"},
        "message": {"type": "string", "description": "why it failed, or what it waits for"},
        "source": {"type": "string"}, "target": {"type": "string"},
        "source_url": {"type": "string"}, "target_url": {"type": "string"},
        "cluster": {"type": "string"}, "method": {"type": "string"},
        "slots": {"type": "string"}, "moved": {"type": "string"},
        "keys": {"type": "integer"}, "keys_moved": {"type": "integer"},
        "percent": {"type": ["number", "null"]},
        "keys_per_s": {"type": ["number", "null"]}, "eta_ms": {"type": ["integer", "null"]},
        "running": {"type": "boolean"}, "ended": {"type": "boolean"}, "answers": {"type": "boolean"},
        "elsewhere": {"type": "boolean"},
        "created_s": {"type": "integer"}, "updated_s": {"type": "integer"},
        "ended_s": {"type": ["integer", "null"]},
        "begun_by": {"type": "string"}, "plan": {"type": "string"},
        "pid": {"type": "integer", "description": "the process that runs it, or ran it last"},
        "scheduled": {"type": ["string", "null"], "description": "a scheduled cutover"},
        "again": {"type": ["string", "null"], "description": "the command that goes on with it"},
        "limits": {"type": ["string", "null"], "description": "rates, in words"},
        "can": {"type": "array", "items": {"type": "string"}, "description": "what this role may ask now"}
    }
}"##;

/// How fast keys move.
const RATES_NOW: &str = r#"{
    "type": ["object", "null"],
    "properties": {
        "rate_keys": {"type": "integer"}, "rate_bytes": {"type": "integer"},
        "max_latency_ms": {"type": "integer"}, "max_lag": {"type": "object"}, "max_load": {"type": "integer"},
        "between": {"type": "string"}, "paused_until_s": {"type": "integer"},
        "memory_bytes": {"type": "integer"}, "lanes": {"type": "string"}, "max_pause_ms": {"type": "integer"},
        "paused": {"type": "boolean"}
    }
}"#;

/// The schema that is written so. They are constants: a test reads them all.
fn schema(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or(Value::Null)
}

/// The document.
pub fn document() -> Value {
    let mut paths = Map::new();
    for operation in OPERATIONS {
        let path = paths.entry(format!("/api/v1{}", operation.path)).or_insert_with(|| json!({}));
        path[operation.method.to_lowercase()] = describe(operation);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Whimbrel's console",
            "version": "1",
            "description": "Jobs, clusters and fleets, as the page in the browser sees them. x-role is the \
                least role that may ask: view, operate or administer.",
        },
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "Job": schema(JOB),
                "Rates": schema(RATES_NOW),
                "Failure": {
                    "type": "object",
                    "required": ["error", "remedy"],
                    "properties": {"error": {"type": "string"}, "remedy": {"type": ["string", "null"]}},
                },
            },
        },
    })
}

fn describe(operation: &Operation) -> Value {
    let failure = |what: &str| {
        let schema = json!({"$ref": "#/components/schemas/Failure"});
        json!({"description": what, "content": {"application/json": {"schema": schema}}})
    };
    let kind = if operation.path == "/stream" { "text/event-stream" } else { "application/json" };
    let mut responses = json!({
        "200": {"description": "What was asked for", "content": {kind: {"schema": schema(operation.answer)}}},
        "400": failure("The request makes no sense"),
        "408": failure("The request has not arrived in time"),
        "413": failure("The request is too long"),
        "415": failure("The request is no JSON"),
        "421": failure("The host is none of this console's names"),
    });
    let mut described = json!({"summary": operation.summary});
    if let Some(role) = operation.needs {
        described["security"] = json!([{"token": []}]);
        described["x-role"] = json!(role);
        for (status, what) in [
            ("401", "There is no token, or it does not hold"),
            ("403", "The role does not permit it, or a page from elsewhere asks"),
            ("404", "There is nothing of this name, or this console has none of it"),
            ("409", "Not as things stand now"),
            ("422", "A server or the job refuses"),
            ("503", "A server does not answer"),
            ("507", "The audit log cannot be written, so nothing was done"),
        ] {
            responses[status] = failure(what);
        }
    }
    described["responses"] = responses;
    let named = operation.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let named: Vec<Value> = named
        .map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}))
        .collect();
    if !named.is_empty() {
        described["parameters"] = json!(named);
    }
    if operation.method == "POST" {
        let mut properties = Map::new();
        for field in operation.fields {
            properties.insert(field.name.to_owned(), schema(field.schema));
        }
        let required: Vec<&str> =
            operation.fields.iter().filter(|field| field.required).map(|field| field.name).collect();
        let schema = json!({
            "type": "object", "properties": properties, "required": required, "additionalProperties": false,
        });
        described["requestBody"] =
            json!({"required": true, "content": {"application/json": {"schema": schema}}});
    }
    described
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_has_a_schema_and_every_operation_a_role() {
        for operation in OPERATIONS {
            for field in operation.fields {
                assert!(schema(field.schema).is_object(), "{}", field.name);
            }
            assert!(schema(operation.answer)["type"].is_string(), "{}", operation.path);
            assert!(operation.needs.is_some() || operation.path == "/openapi.json");
            assert!(operation.method == "GET" || operation.needs >= Some(Role::Operate));
        }
        assert!(schema(JOB).is_object() && schema(RATES_NOW).is_object());
        let document = document();
        assert_eq!(document["paths"].as_object().expect("paths").len(), OPERATIONS.len() - 1);
        assert_eq!(document["paths"]["/api/v1/audit"]["get"]["x-role"], "administer");
    }
}
