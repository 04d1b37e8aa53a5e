//! Protocols of other products, on top of the service.
//!
//! Each is a crate of its own that speaks the protocol over a store that is a parameter; here are the stores: what a caller is, how the
//! keyspace's entries, leases and errors look in that protocol. [How an adapter is built](../../etcd/README.md#how-an-adapter-is-built).
//!
//! | file | what it has |
//! |---|---|
//! | `certified_port` | a port whose connections have the identity of their certificate |
//! | `failure_class` | what an error means to clients: whether their request may have taken effect |
//! | `keyspace_client` | requests of every adapter: they wait for a leader while none is known |
//! | `etcd` | the store of `lockkeeper-etcd` |
//! | `dynamodb` | the store of `lockkeeper-dynamodb`, and its port |
//! | `zookeeper` | the store of `lockkeeper-zookeeper`, its port, and the sessions of its connections |
//! | `redis` | the store of `lockkeeper-redis`, its port, and the units of other nodes |

mod certified_port;
pub(crate) mod dynamodb;
pub(crate) mod etcd;
mod failure_class;
mod keyspace_client;
pub(crate) mod redis;
pub(crate) mod zookeeper;
