// The only file of the benchmarks that includes Gloo's headers. Debian's headers are older than the Gloo in
// libtorch_cpu, so only LibTorch's functions may create Gloo objects here.
#include "sync/gloo_group.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdlib>
#include <string>

namespace tutti::bench {
namespace {

/// Creates a store on a port that the system chooses. `communicator` broadcasts the port.
c10::intrusive_ptr<c10d::Store> make_store(const Communicator& communicator, const Environment& environment) {
  c10d::TCPStoreOptions options;
  options.waitWorkers = false;
  c10::intrusive_ptr<c10d::TCPStore> server;
  if (communicator.rank() == 0) {
    options.isServer = true;
    options.port = 0;
    server = c10::make_intrusive<c10d::TCPStore>(environment.master_addr, options);
  }
  const auto port = communicator.broadcast_object(server ? std::to_string(server->getPort()) : "");
  if (server) return server;
  options.port = static_cast<std::uint16_t>(std::stoi(port));
  return c10::make_intrusive<c10d::TCPStore>(environment.master_addr, options);
}

std::shared_ptr<gloo::transport::Device> make_device(const Environment& environment) {
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME")) {
    return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  }
  if (environment.num_nodes == 1) return c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  return c10d::ProcessGroupGloo::createDefaultDevice();
}

}  // namespace

bool has_gloo_headers() {
  return true;
}

c10::intrusive_ptr<c10d::ProcessGroup> make_gloo_group(const Communicator& communicator,
                                                       const Environment& environment) {
  const auto store = c10::make_intrusive<c10d::PrefixStore>("bench", make_store(communicator, environment));
  auto options = c10d::ProcessGroupGloo::Options::create();
  options->devices.push_back(make_device(environment));
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, communicator.rank(), communicator.size());
  group->setBackend(
      c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO,
      c10::make_intrusive<c10d::ProcessGroupGloo>(store, communicator.rank(), communicator.size(), options));
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  return group;
}

}  // namespace tutti::bench
