#include "comm/device/device_group.h"

#include <exception>
#include <utility>

namespace tutti::comm {

using devices::StreamEvent;

namespace {

DeviceGroup::EventPtr shared(StreamEvent event) {
  return std::make_shared<const StreamEvent>(std::move(event));
}

}  // namespace

DeviceGroup::DeviceGroup(c10::intrusive_ptr<c10d::Backend> c10d_backend, at::Device device,
                         std::shared_ptr<const PeerHealth> peers)
    : c10d_backend_(std::move(c10d_backend)),
      device_(device),
      launch_stream_(device),
      finish_stream_(device),
      watchdog_(device, std::move(peers), c10d_backend_->getRank(), c10d_backend_->getSize(),
                [backend = c10d_backend_.get()] { backend->abort(); }) {}

DeviceGroup::~DeviceGroup() {
  try {
    if (watchdog_.wait_for_all()) c10d_backend_->shutdown();
  } catch (const std::exception&) {
    // Backends without streams have no shutdown(): their work ends before wait() returns.
  }
}

void DeviceGroup::run_on_current_stream(const Operation& operation, std::vector<at::Tensor> memory,
                                        const Launch& launch) {
  throw_if_failed();
  rethrow_as_transfer_error([&] {
    auto inputs_ready = shared(StreamEvent::on_current_stream(device_));
    launch(*c10d_backend_)->wait();
    watchdog_.watch({.inputs_ready = std::move(inputs_ready),
                     .completed = shared(StreamEvent::on_current_stream(device_)),
                     .timeout = operation.timeout,
                     .memory = std::move(memory)});
  });
}

DeviceGroup::EventPtr DeviceGroup::run_after(const EventPtr& inputs_ready, const Operation& operation,
                                             const at::Tensor& memory, const Launch& launch,
                                             const std::function<void()>& finish) {
  throw_if_failed();
  return rethrow_as_transfer_error([&] {
    WorkPtr work;
    launch_stream_.run([&] {
      inputs_ready->block_current_stream();
      work = launch(*c10d_backend_);
    });
    finish_stream_.run([&] {
      work->wait();  // on a device, the stream waits and not the CPU
      finish();
    });
    auto completed = shared(finish_stream_.record_event());
    watchdog_.watch(
        {.inputs_ready = inputs_ready, .completed = completed, .timeout = operation.timeout, .memory = {memory}});
    return completed;
  });
}

}  // namespace tutti::comm
