#include "comm/meeting/store_door.h"

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

#include "comm/meeting/local_address.h"
#include "comm/meeting/local_meeting.h"
#include "comm/meeting/store_on_demand.h"
#include "comm/members/gate.h"
#include "comm/members/knock.h"
#include "core/bound_socket.h"
#include "core/descriptor_limit.h"
#include "core/launchers.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

constexpr const char* loopback_host = "127.0.0.1";
constexpr const char* store_subject = "store";
constexpr auto patience_with_the_silent = std::chrono::seconds(2);
// c10d tries again and again where it does not understand the answer.
constexpr std::chrono::milliseconds patience_with_a_gate = std::chrono::seconds(5);
// A store that was there has nothing to wait for, be it busy with many ranks: so much for each of them.
constexpr auto patience_with_a_known_store = std::chrono::seconds(10);
constexpr auto patience_for_each_rank = std::chrono::milliseconds(300);
constexpr auto patience_for_a_greeting = std::chrono::milliseconds(500);

bool rank_serves_store(const Environment& environment) {
  return environment.rank == 0 && !environment.agent_store;
}

// An inherited socket is gone once the store that took it over has ended; the number may mean another file by then.
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
class StoreBehind final : public c10d::TCPStore {
 public:
  /// Copies need the way too where it is how this process reaches the store, not where it is how others do.
  StoreBehind(const std::string& host, const c10d::TCPStoreOptions& options, std::shared_ptr<Gate> way,
              bool copies_need_it)
      : TCPStore(host, options), way_(std::move(way)), copies_need_it_(copies_need_it) {}

  c10::intrusive_ptr<c10d::Store> clone() override {
    if (!copies_need_it_) return TCPStore::clone();
    c10d::TCPStoreOptions options;
    options.port = getPort();
    options.waitWorkers = false;
    options.timeout = getTimeout();
    return c10::make_intrusive<StoreBehind>(getHost(), options, way_, true);
  }

 private:
  std::shared_ptr<Gate> way_;
  bool copies_need_it_;
};

c10d::TCPStoreOptions options_of_client(std::uint16_t port, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.waitWorkers = false;  // join_job() waits and names the absent
  options.timeout = timeout;
  return options;
}

// Connects of one process that live at a time share the store of a port, as c10d has it; so they share its gate.
std::shared_ptr<Gate> gate_of_port(std::uint16_t port, const std::function<std::shared_ptr<Gate>()>& make) {
  static std::mutex mutex;
  static std::map<std::uint16_t, std::weak_ptr<Gate>> gates;
  const std::lock_guard lock(mutex);
  auto& known = gates[port];
  if (auto gate = known.lock()) return gate;
  auto gate = make();
  known = gate;
  return gate;
}

// Others knock at `outer`; the store is to listen at `inner`, which becomes its own.
std::shared_ptr<Gate> make_gate(FileDescriptor outer, const JobSecretPtr& secret, FileDescriptor& inner) {
  const auto loopback = listen_on_loopback();
  inner = FileDescriptor(loopback.descriptor);
  ::fcntl(outer.get(), F_SETFL, O_NONBLOCK);
  ::fcntl(outer.get(), F_SETFD, FD_CLOEXEC);
  return std::make_shared<Gate>(Gate::Plan{.listening = std::move(outer),
                                           .onward = {loopback_host, loopback.port},
                                           .proof = Passage::Proof::asked,
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
    begin_to_listen(socket);
    return std::move(socket.fd);
  } catch (const std::system_error& error) {
    if (error.code().value() == EADDRINUSE) throw PortInUse{error.what()};
    throw;
  }
}

// c10d's store leaves connections that it has no descriptors for unanswered, without a word: ranks would wait in vain.
void make_room_for(const Environment& environment, bool behind_gate) {
  constexpr std::uint64_t connections_on_one_node = 2;  // of a rank: both of its Rendezvous
  constexpr std::uint64_t connections_on_several = 3;   // and that of its Pulse
  constexpr std::uint64_t descriptors_at_a_gate = 3;    // for a connection: the store's end, and both of the gate's
  constexpr std::uint64_t for_everything_else = 256;
  const auto ranks = static_cast<std::uint64_t>(environment.world_size);
  const auto connections = ranks * (environment.num_nodes == 1 ? connections_on_one_node : connections_on_several);
  const auto needed = open_descriptors() + connections * (behind_gate ? descriptors_at_a_gate : 1);
  const auto allowed = allow_descriptors(needed + for_everything_else);
  if (allowed >= needed) return;
  throw UsageError("Rank 0 serves the store that all " + std::to_string(ranks) + " ranks come to, and needs " +
                   std::to_string(needed) + " file descriptors for it. It may have " + std::to_string(allowed) +
                   ": raise its hard limit (ulimit -Hn; LimitNOFILE in a unit of systemd).");
}

std::string described(const SocketAddress& address) {
  return address.host + " port " + std::to_string(address.port);
}

[[noreturn]] void throw_for(Knocked::Answer answer, const SocketAddress& address, const JobSecret& secret) {
  const std::string own = "The secret of this rank (from " + secret.source() + ") ";
  if (answer == Knocked::Answer::refused) {
    throw UsageError(own + "is not that of the job at " + described(address) +
                     ". Give all ranks the same, and check MASTER_ADDR and MASTER_PORT.");
  }
  const std::string does =
      answer == Knocked::Answer::open_store ? " asks for no proof" : " does not know the job's secret";
  throw UsageError("Whoever listens at " + described(address) + does + ". " + own +
                   "is to be that of rank 0 too; or another program listens there: check MASTER_ADDR and MASTER_PORT.");
}

// What rank 0 leaves at the agent's store. It is not trusted: whoever is found there has to prove the secret.
SocketAddress address_in(const std::string& text) {
  std::istringstream words(text);
  SocketAddress address;
  words >> address.host >> address.port;
  constexpr int max_port = 65535;
  if (words.fail() || address.port < 1 || address.port > max_port) throw StoreLost{"the address of rank 0 is none"};
  return address;
}

}  // namespace

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

StoreDoor::StoreDoor(const Environment& environment, const JobSecretPtr& secret, std::chrono::milliseconds timeout)
    : host_(environment.master_addr),
      port_(environment.master_port),
      serves_(rank_serves_store(environment)),
      one_machine_(environment.num_nodes == 1),
      world_size_(environment.world_size) {
  if (secret && environment.agent_store) {
    meet_at_agent(environment, secret, timeout);
  } else if (secret && serves_) {
    open_gate(environment, secret);
  } else if (secret) {
    call_porter(host_, port_, secret, timeout);
  } else if (!environment.agent_store) {
    may_be_gate_ = environment.num_nodes > 1 && !serves_;
    if (environment.num_nodes == 1) host_ = loopback_host;
    if (serves_) take_port(environment);
  }
  if (serves_) make_room_for(environment, is_gate_);
}

void StoreDoor::take_port(const Environment& environment) {
  try {
    listening_ = listen_for_job(environment);
  } catch (const PortInUse&) {
    // It may be held by an earlier connect of this process, whose store is shared; c10d knows.
  }
}

void StoreDoor::open_gate(const Environment& environment, const JobSecretPtr& secret) {
  way_ = gate_of_port(port_, [&] { return make_gate(listen_for_job(environment), secret, listening_); });
  is_gate_ = true;
  host_ = loopback_host;
  port_ = static_cast<std::uint16_t>(way_->onward().port);
}

void StoreDoor::call_porter(const std::string& host, std::uint16_t port, const JobSecretPtr& secret,
                            std::chrono::milliseconds timeout) {
  std::string cause = "nobody knows the host " + host;
  for (const auto& numeric : addresses_of(host)) {
    const SocketAddress address{numeric, port};
    const auto patience = std::min<std::chrono::milliseconds>(timeout, patience_with_the_silent);
    const auto [answer, trouble] = knock(address, secret, store_subject, patience);
    if (answer == Knocked::Answer::proven) {
      auto near = listen_on_loopback();
      ::fcntl(near.descriptor, F_SETFL, O_NONBLOCK);
      host_ = loopback_host;
      port_ = near.port;
      way_ = std::make_shared<Gate>(Gate::Plan{.listening = FileDescriptor(near.descriptor),
                                               .onward = address,
                                               .proof = Passage::Proof::given,
                                               .secret = secret,
                                               .subject = store_subject});
      return;
    }
    if (answer == Knocked::Answer::silent) {
      cause = "nobody there has asked for the job's secret";
    } else if (answer == Knocked::Answer::nobody) {
      cause = trouble;
    } else {
      throw_for(answer, address, *secret);
    }
  }
  throw StoreLost{cause};
}

// The launcher's agent serves a store that takes anybody. There rank 0 tells where its own is, behind a gate.
void StoreDoor::meet_at_agent(const Environment& environment, const JobSecretPtr& secret,
                              std::chrono::milliseconds timeout) {
  const c10d::TCPStoreOptions options = options_of_client(port_, timeout);
  const c10::intrusive_ptr<c10d::Store> agent = c10::make_intrusive<c10d::TCPStore>(host_, options);
  const std::string attempt = "tutti/" + std::to_string(environment.restart_count) + "/gate/";
  const auto connects = agent->add(attempt + "connects/" + std::to_string(environment.rank), 1);
  const std::string key = attempt + std::to_string(connects);
  if (environment.rank != 0) {
    const auto [host, port] = address_in(agent->get_to_str(key));
    return call_porter(host, static_cast<std::uint16_t>(port), secret, timeout);
  }
  const auto interface = process_variable("GLOO_SOCKET_IFNAME").value_or("");
  const auto host = interface.empty() ? local_address_towards(host_) : address_of_interface(interface);
  auto outer = listen_on(host);
  way_ = make_gate(std::move(outer.socket), secret, listening_);
  is_gate_ = true;
  serves_ = true;
  host_ = loopback_host;
  port_ = static_cast<std::uint16_t>(way_->onward().port);
  agent->set(key, host + " " + std::to_string(outer.address.port));
}

c10::intrusive_ptr<c10d::Store> StoreDoor::connect(std::chrono::milliseconds timeout) {
  auto options = options_of_client(port_, may_be_gate_ ? std::min(timeout, patience_with_a_gate) : timeout);
  options.isServer = std::exchange(serves_, false);
  options.multiTenant = true;  // a process may connect more than once
  if (options.isServer && listening_.is_open()) options.masterListenFd = listening_.release();
  // A gate goes with the store; a porter with the last of its connections.
  const bool keeps_way = way_ && (!is_gate_ || options.isServer);
  c10::intrusive_ptr<c10d::Store> store;
  if (keeps_way) {
    store = c10::make_intrusive<StoreBehind>(host_, options, way_, !is_gate_);
  } else {
    store = c10::make_intrusive<c10d::TCPStore>(host_, options);
  }
  if (one_machine_ && !options.isServer) {
    options.timeout = std::min<std::chrono::milliseconds>(
        timeout, patience_with_a_known_store + world_size_ * patience_for_each_rank);
    store = c10::make_intrusive<StoreOnDemand>(
        store, [host = host_, options] { return c10::make_intrusive<c10d::TCPStore>(host, options); });
  }
  store->setTimeout(timeout);
  return store;
}

bool is_asked_for_proof(const Environment& environment) {
  return std::ranges::any_of(addresses_of(environment.master_addr), [&](const std::string& numeric) {
    return asks_for_proof({numeric, environment.master_port}, patience_for_a_greeting);
  });
}

}  // namespace tutti::comm
