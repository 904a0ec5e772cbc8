// The only file of src/ that includes Gloo's headers. They are older than the Gloo inside LibTorch, so no Gloo object
// is created here and no Gloo type is subclassed: c10d does that.
#include "comm/device/c10d_gloo.h"

#include <csignal>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <utility>

#include "comm/device/nccl.h"
#include "core/thread_name.h"

namespace tutti::comm {
namespace {

/// Gloo writes without MSG_NOSIGNAL, so its threads block SIGPIPE. They inherit the mask of the thread that starts
/// them.
class BlockSigpipe {
 public:
  BlockSigpipe() {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &signals, &previous_);
  }
  ~BlockSigpipe() { pthread_sigmask(SIG_SETMASK, &previous_, nullptr); }
  BlockSigpipe(const BlockSigpipe&) = delete;
  BlockSigpipe& operator=(const BlockSigpipe&) = delete;

 private:
  sigset_t previous_{};
};

}  // namespace

std::string c10d_gloo_unavailable_reason() {
  return "";
}

C10dBackendFactory c10d_gloo_factory(c10::intrusive_ptr<c10d::Store> store, const std::string& address,
                                     std::chrono::milliseconds timeout) {
  const auto make = [store = std::move(store), address, timeout](const std::string& group, int rank, int size,
                                                                 c10::Device) -> c10::intrusive_ptr<c10d::Backend> {
    const BlockSigpipe block;
    const ScopedThreadName gloo_thread("tutti-gloo-io");
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname(address, /*lazyInit=*/true)};
    return c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<c10d::PrefixStore>("c10d_gloo/" + group, store), rank, size, std::move(options));
  };
  return {.name = "c10d:gloo", .device = nccl_device_type, .make = make};
}

}  // namespace tutti::comm
