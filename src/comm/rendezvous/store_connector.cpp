#include "comm/rendezvous/store_connector.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <sstream>
#include <system_error>
#include <utility>
#include <vector>

#include "comm/auth/auth_client.h"
#include "comm/auth/auth_proxy.h"
#include "comm/rendezvous/local_address.h"
#include "comm/rendezvous/local_port_discovery.h"
#include "comm/rendezvous/reconnecting_store.h"
#include "core/bound_socket.h"
#include "core/descriptor_limit.h"
#include "core/launchers.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

constexpr const char* loopback_host = "127.0.0.1";
constexpr const char* store_subject = "store";
constexpr auto auth_timeout = std::chrono::seconds(2);
// c10d tries again and again where it does not understand the answer.
constexpr std::chrono::milliseconds proxy_connect_timeout = std::chrono::seconds(5);
// A store that was there has nothing to wait for, be it busy with many ranks: so much for each of them.
constexpr auto reconnect_timeout = std::chrono::seconds(10);
constexpr auto reconnect_timeout_per_rank = std::chrono::milliseconds(300);
constexpr auto auth_probe_timeout = std::chrono::milliseconds(500);

// An inherited socket is closed once the store that took it over has ended; its number may then name another file.
bool listens_on(int descriptor, std::uint16_t port) {
  int listening = 0;
  socklen_t length = sizeof(listening);
  if (::getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listening, &length) != 0 || listening == 0) return false;
  sockaddr_storage address{};
  length = sizeof(address);
  if (::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) != 0) return false;
  const auto in_network_order = address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                                              : reinterpret_cast<sockaddr_in&>(address).sin_port;
  return ntohs(in_network_order) == port;
}

// Holds what a store is reached through as long as the store is in use.
class ProxiedTCPStore final : public c10d::TCPStore {
 public:
  /// Copies need the way too where it is how this process reaches the store, not where it is how others do.
  ProxiedTCPStore(const std::string& host, const c10d::TCPStoreOptions& options, std::shared_ptr<AuthProxy> proxy,
                  bool copies_need_proxy)
      : TCPStore(host, options), proxy_(std::move(proxy)), copies_need_proxy_(copies_need_proxy) {}

  c10::intrusive_ptr<c10d::Store> clone() override {
    if (!copies_need_proxy_) return TCPStore::clone();
    c10d::TCPStoreOptions options;
    options.port = getPort();
    options.waitWorkers = false;
    options.timeout = getTimeout();
    return c10::make_intrusive<ProxiedTCPStore>(getHost(), options, proxy_, true);
  }

 private:
  std::shared_ptr<AuthProxy> proxy_;
  bool copies_need_proxy_;
};

c10d::TCPStoreOptions client_options(std::uint16_t port, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.waitWorkers = false;  // join_job() waits and names the absent
  options.timeout = timeout;
  return options;
}

// Simultaneous connects of one process share the store of a port, as in c10d; so they share its proxy.
std::shared_ptr<AuthProxy> proxy_of_port(std::uint16_t port, const std::function<std::shared_ptr<AuthProxy>()>& make) {
  static std::mutex mutex;
  static std::map<std::uint16_t, std::weak_ptr<AuthProxy>> proxies;
  const std::lock_guard lock(mutex);
  auto& known = proxies[port];
  if (auto proxy = known.lock()) return proxy;
  auto proxy = make();
  known = proxy;
  return proxy;
}

// Clients authenticate at `outer`; the store must listen at `inner`, which it takes over.
std::shared_ptr<AuthProxy> make_server_proxy(FileDescriptor outer, const JobSecretPtr& secret, FileDescriptor& inner) {
  const auto loopback = listen_on_loopback();
  inner = FileDescriptor(loopback.descriptor);
  ::fcntl(outer.get(), F_SETFL, O_NONBLOCK);
  ::fcntl(outer.get(), F_SETFD, FD_CLOEXEC);
  return std::make_shared<AuthProxy>(AuthProxy::Options{.listening = std::move(outer),
                                                        .server_address = {loopback_host, loopback.port},
                                                        .role = ProxyConnection::Role::server,
                                                        .secret = secret,
                                                        .subject = store_subject});
}

// The socket that rank 0 listens at: the launcher's, or one of its own.
FileDescriptor listen_for_job(const Environment& environment) {
  const auto port = environment.master_port;
  if (environment.master_listen_fd && listens_on(*environment.master_listen_fd, port)) {
    // Its connections inherit this; without it they would keep the port from the next connect of this process.
    const int reuse = 1;
    ::setsockopt(*environment.master_listen_fd, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse));
    return FileDescriptor(*environment.master_listen_fd);
  }
  try {
    auto socket = environment.num_nodes == 1 ? bind_to_loopback(port) : bind_to_host(environment.master_addr, port);
    start_listening(socket);
    return std::move(socket.fd);
  } catch (const std::system_error& error) {
    if (error.code().value() == EADDRINUSE) throw PortInUse{error.what()};
    throw;
  }
}

// Without enough descriptors, c10d's store silently leaves connections unanswered, and ranks would wait for it.
void require_descriptors(const Environment& environment, bool behind_proxy) {
  constexpr std::uint64_t connections_on_one_node = 2;  // of a rank: both of its Rendezvous
  constexpr std::uint64_t connections_on_several = 3;   // and that of its HeartbeatMonitor
  constexpr std::uint64_t descriptors_per_proxied_connection =
      3;  // for a connection: the store's end, and both ends of the proxy
  constexpr std::uint64_t other_descriptors = 256;
  const auto ranks = static_cast<std::uint64_t>(environment.world_size);
  const auto connections = ranks * (environment.num_nodes == 1 ? connections_on_one_node : connections_on_several);
  const auto needed = count_open_descriptors() + connections * (behind_proxy ? descriptors_per_proxied_connection : 1);
  const auto allowed = raise_descriptor_limit(needed + other_descriptors);
  if (allowed >= needed) return;
  throw UsageError("Rank 0 serves the store for all " + std::to_string(ranks) + " ranks and needs " +
                   std::to_string(needed) + " file descriptors for it. Its limit is " + std::to_string(allowed) +
                   ": raise the hard limit (ulimit -Hn; LimitNOFILE in a unit of systemd).");
}

std::string describe_address(const SocketAddress& address) {
  return address.host + " port " + std::to_string(address.port);
}

[[noreturn]] void throw_auth_error(AuthResult::Status status, const SocketAddress& address, const JobSecret& secret) {
  const std::string own_secret = "The secret of this rank (from " + secret.source() + ") ";
  if (status == AuthResult::Status::refused) {
    throw UsageError(own_secret + "is not that of the job at " + describe_address(address) +
                     ". Give all ranks the same, and check MASTER_ADDR and MASTER_PORT.");
  }
  const std::string problem =
      status == AuthResult::Status::no_auth_required ? " asks for no proof" : " does not know the job's secret";
  throw UsageError("The process that listens at " + describe_address(address) + problem + ". " + own_secret +
                   "must be that of rank 0 too; or another program listens there: check MASTER_ADDR and MASTER_PORT.");
}

// The address that rank 0 publishes at the agent's store. It is not trusted: the server there must prove the secret.
SocketAddress parse_address(const std::string& text) {
  std::istringstream words(text);
  SocketAddress address;
  words >> address.host >> address.port;
  constexpr int max_port = 65535;
  if (words.fail() || address.port < 1 || address.port > max_port)
    throw StoreUnreachable{"the address that rank 0 published is malformed"};
  return address;
}

}  // namespace

StoreConnector::StoreConnector(const Environment& environment, const JobSecretPtr& secret,
                               std::chrono::milliseconds timeout)
    : host_(environment.master_addr),
      port_(environment.master_port),
      serves_(rank_serves_store(environment)),
      single_node_(environment.num_nodes == 1),
      world_size_(environment.world_size) {
  if (secret && environment.agent_store) {
    connect_at_agent(environment, secret, timeout);
  } else if (secret && serves_) {
    start_server_proxy(environment, secret);
  } else if (secret) {
    start_client_proxy(host_, port_, secret, timeout);
  } else if (!environment.agent_store) {
    may_be_proxy_ = environment.num_nodes > 1 && !serves_;
    if (environment.num_nodes == 1) host_ = loopback_host;
    if (serves_) take_port(environment);
  }
  if (serves_) require_descriptors(environment, is_server_proxy_);
}

void StoreConnector::take_port(const Environment& environment) {
  try {
    listening_ = listen_for_job(environment);
  } catch (const PortInUse&) {
    // It may be held by an earlier connect of this process, whose store is shared; c10d knows.
  }
}

void StoreConnector::start_server_proxy(const Environment& environment, const JobSecretPtr& secret) {
  proxy_ = proxy_of_port(port_, [&] { return make_server_proxy(listen_for_job(environment), secret, listening_); });
  is_server_proxy_ = true;
  host_ = loopback_host;
  port_ = static_cast<std::uint16_t>(proxy_->server_address().port);
}

void StoreConnector::start_client_proxy(const std::string& host, std::uint16_t port, const JobSecretPtr& secret,
                                        std::chrono::milliseconds timeout) {
  std::string cause = "cannot resolve the host " + host;
  for (const auto& numeric : resolve_host(host)) {
    const SocketAddress address{numeric, port};
    const auto attempt_timeout = std::min<std::chrono::milliseconds>(timeout, auth_timeout);
    const auto [status, detail] = authenticate(address, secret, store_subject, attempt_timeout);
    if (status == AuthResult::Status::authenticated) {
      auto listener = listen_on_loopback();
      ::fcntl(listener.descriptor, F_SETFL, O_NONBLOCK);
      host_ = loopback_host;
      port_ = listener.port;
      proxy_ = std::make_shared<AuthProxy>(AuthProxy::Options{.listening = FileDescriptor(listener.descriptor),
                                                              .server_address = address,
                                                              .role = ProxyConnection::Role::client,
                                                              .secret = secret,
                                                              .subject = store_subject});
      return;
    }
    if (status == AuthResult::Status::no_response) {
      cause = "the server there did not ask for the job's secret";
    } else if (status == AuthResult::Status::unreachable) {
      cause = detail;
    } else {
      throw_auth_error(status, address, *secret);
    }
  }
  throw StoreUnreachable{cause};
}

// The launcher's agent serves a store without authentication. Rank 0 publishes the address of its own proxy there.
void StoreConnector::connect_at_agent(const Environment& environment, const JobSecretPtr& secret,
                                      std::chrono::milliseconds timeout) {
  const c10d::TCPStoreOptions options = client_options(port_, timeout);
  const c10::intrusive_ptr<c10d::Store> agent = c10::make_intrusive<c10d::TCPStore>(host_, options);
  const std::string attempt = "tutti/" + std::to_string(environment.restart_count) + "/proxy/";
  const auto connects = agent->add(attempt + "connects/" + std::to_string(environment.rank), 1);
  const std::string key = attempt + std::to_string(connects);
  if (environment.rank != 0) {
    const auto [host, port] = parse_address(agent->get_to_str(key));
    return start_client_proxy(host, static_cast<std::uint16_t>(port), secret, timeout);
  }
  const auto interface = process_variable("GLOO_SOCKET_IFNAME").value_or("");
  const auto host = interface.empty() ? local_address_towards(host_) : interface_address(interface);
  auto outer = listen_tcp(host);
  proxy_ = make_server_proxy(std::move(outer.socket), secret, listening_);
  is_server_proxy_ = true;
  serves_ = true;
  host_ = loopback_host;
  port_ = static_cast<std::uint16_t>(proxy_->server_address().port);
  agent->set(key, host + " " + std::to_string(outer.address.port));
}

c10::intrusive_ptr<c10d::Store> StoreConnector::connect(std::chrono::milliseconds timeout) {
  auto options = client_options(port_, may_be_proxy_ ? std::min(timeout, proxy_connect_timeout) : timeout);
  options.isServer = std::exchange(serves_, false);
  options.multiTenant = true;  // a process may connect more than once
  if (options.isServer && listening_.is_open()) options.masterListenFd = listening_.release();
  // A server proxy exists as long as the store, a client proxy as long as the last of its connections.
  const bool keeps_proxy = proxy_ && (!is_server_proxy_ || options.isServer);
  c10::intrusive_ptr<c10d::Store> store;
  if (keeps_proxy) {
    store = c10::make_intrusive<ProxiedTCPStore>(host_, options, proxy_, !is_server_proxy_);
  } else {
    store = c10::make_intrusive<c10d::TCPStore>(host_, options);
  }
  if (single_node_ && !options.isServer) {
    options.timeout =
        std::min<std::chrono::milliseconds>(timeout, reconnect_timeout + world_size_ * reconnect_timeout_per_rank);
    store = c10::make_intrusive<ReconnectingStore>(
        store, [host = host_, options] { return c10::make_intrusive<c10d::TCPStore>(host, options); });
  }
  store->setTimeout(timeout);
  return store;
}

bool server_requires_auth(const Environment& environment) {
  return std::ranges::any_of(resolve_host(environment.master_addr), [&](const std::string& numeric) {
    return requires_authentication({numeric, environment.master_port}, auth_probe_timeout);
  });
}

}  // namespace tutti::comm
