#include "comm/select_device_backend.h"

#include <algorithm>
#include <array>
#include <sstream>

#include "comm/device/nccl.h"
#include "device/devices.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

using ForDevices = BackendRequest::ForDevices;

constexpr std::array host_backends{"auto", "tcp", "mpi", "mpi_only", "shared_memory", "hierarchical"};
constexpr const char* known_names =
    "auto, tcp, mpi, mpi_only, shared_memory, hierarchical, nccl, c10d:gloo, staged, staged:NAME (staged over "
    "another)";

bool is_host_backend(const std::string& name) {
  return std::ranges::find(host_backends, name) != host_backends.end();
}

std::string rank_text(std::size_t rank) {
  return "rank " + std::to_string(rank);
}

std::string type_text(const DeviceInfo& info) {
  return info.device ? c10::DeviceTypeName(info.device->type(), /*lower_case=*/true) : "cpu";
}

// The ranks of a job of one process need no number.
std::string prefix_of(std::size_t rank, const std::vector<DeviceInfo>& infos) {
  return infos.size() == 1 ? "" : rank_text(rank) + ": ";
}

/// The first two ranks that share a device, as text; empty if each has its own.
std::string describe_shared_device(const std::vector<DeviceInfo>& infos, const std::vector<int>& nodes) {
  for (std::size_t second = 0; second < infos.size(); ++second) {
    for (std::size_t first = 0; first < second; ++first) {
      if (nodes[first] != nodes[second] || infos[second].uuid.empty() || infos[first].uuid != infos[second].uuid)
        continue;
      return rank_text(first) + " and " + rank_text(second) + " share one device (" + infos[first].device->str() +
             " and " + infos[second].device->str() + ", UUID " + infos[first].uuid + ")";
    }
  }
  return "";
}

void require_one_type(const std::vector<DeviceInfo>& infos) {
  for (std::size_t rank = 1; rank < infos.size(); ++rank) {
    if (type_text(infos[rank]) == type_text(infos[0])) continue;
    throw UsageError("rank 0 uses the device type " + type_text(infos[0]) + ", " + rank_text(rank) + " uses " +
                     type_text(infos[rank]) + ": pass a device of the same type on all ranks.");
  }
}

void require_nccl(const BackendRequest& request, const std::vector<DeviceInfo>& infos, const std::vector<int>& nodes) {
  for (std::size_t rank = 0; rank < infos.size(); ++rank) {
    if (infos[rank].nccl_problem.empty()) continue;
    throw UsageError(prefix_of(rank, infos) + request.error_prefix + "The backend " + request.name +
                     " cannot be used: " + infos[rank].nccl_problem + ". Leave it at auto.");
  }
  if (request.for_devices != ForDevices::nccl) return;
  if (const auto shared = describe_shared_device(infos, nodes); !shared.empty()) {
    throw UsageError(request.error_prefix + "The backend nccl needs a device for each rank, but " + shared +
                     ". Start no more ranks on a node than it has devices, or use the backend staged.");
  }
}

}  // namespace

BackendRequest parse_backend(const std::string& name, const std::string& error_prefix,
                             const std::optional<C10dBackendFactory>& device_backend) {
  BackendRequest request{.name = name, .error_prefix = error_prefix};
  const std::string staged = "staged:";
  if (name == "gloo" || name == "staged:gloo") {
    throw UsageError(error_prefix + "There is no backend 'gloo' for CPU memory. Use tcp for messages over TCP, or " +
                     "c10d:gloo for c10d's Gloo with CUDA devices.");
  }
  if (name == "auto") {
    request.for_devices = ForDevices::automatic;
  } else if (name == "nccl") {
    request.for_devices = ForDevices::nccl;
  } else if (name == "c10d:gloo") {
    request.for_devices = ForDevices::c10d_gloo;
  } else if (name == "staged") {
    request.for_devices = ForDevices::staged;
  } else if (name.starts_with(staged) && is_host_backend(name.substr(staged.size()))) {
    request.for_devices = ForDevices::staged;
    request.host = name.substr(staged.size());
  } else if (is_host_backend(name)) {
    request.host = name;
  } else {
    std::string text = error_prefix;
    text += "There is no backend '" + name + "'. Known: " + known_names + ".";
    if (name.starts_with("c10d:")) text += " Pass any other backend of c10d as CommunicatorOptions::device_backend.";
    throw UsageError(text);
  }
  if (!device_backend) return request;
  if (request.for_devices != ForDevices::none && request.for_devices != ForDevices::automatic) {
    throw UsageError(error_prefix + "CommunicatorOptions: device_backend is set beside the backend " + name +
                     ", which is one for devices too. Leave the backend at auto.");
  }
  request.for_devices = ForDevices::factory;
  return request;
}

// The problem comes last, because it may have several lines.
std::string DeviceInfo::to_text() const {
  const int type = device ? static_cast<int>(device->type()) : -1;
  const int index = device ? device->index() : -1;
  return std::to_string(type) + " " + std::to_string(index) + "\n" + uuid + "\n" + nccl_problem + "\n" + problem;
}

DeviceInfo DeviceInfo::from_text(const std::string& text) {
  std::istringstream stream(text);
  int type = -1;
  int index = -1;
  DeviceInfo info;
  stream >> type >> index;
  stream.ignore(1);
  std::getline(stream, info.uuid);
  std::getline(stream, info.nccl_problem);
  std::getline(stream, info.problem, '\0');
  if (type >= 0) info.device = c10::Device(static_cast<c10::DeviceType>(type), static_cast<c10::DeviceIndex>(index));
  return info;
}

DeviceInfo device_info(const BackendRequest& request, const CommunicatorOptions& options, int local_rank) {
  DeviceInfo info;
  try {
    const bool needs_cuda = request.needs_cuda();
    std::optional<c10::Device> device = options.device;
    if (!device && needs_cuda) device = c10::Device(nccl_device_type);
    if (!device || !devices::is_accelerator(*device)) {
      if (needs_cuda) {
        info.nccl_problem =
            "it serves CUDA devices, and CommunicatorOptions::device is " + device.value_or(at::kCPU).str();
      }
      return info;
    }
    info.device = devices::device_of_rank(*device, local_rank);
    if (device->type() != nccl_device_type) {
      if (needs_cuda) info.nccl_problem = "it serves CUDA devices, not " + device->str();
    } else if (needs_cuda || request.for_devices == ForDevices::automatic) {
      info.nccl_problem = nccl_unavailable_reason();
    }
    if (needs_cuda && !info.nccl_problem.empty()) return info;
    devices::require_available(*info.device);
    if (device->type() == nccl_device_type && nccl_unavailable_reason().empty()) {
      info.uuid = cuda_device_uuid(info.device->index());
    }
    if (options.device_backend && options.device_backend->device != device->type()) {
      info.problem = "CommunicatorOptions::device_backend serves devices of type " +
                     c10::DeviceTypeName(options.device_backend->device, /*lower_case=*/true) + ", not " +
                     info.device->str() + ". Pass a backend for that type, or use the backend staged.";
    } else if (request.for_devices == ForDevices::none) {
      info.problem = request.error_prefix + "The backend " + request.name + " serves CPU memory, not " +
                     info.device->str() + ". Use staged:" + request.name + ", or leave it at auto.";
    }
  } catch (const std::exception& error) {
    info.problem = error.what();
    info.problem += ". Choose a device that the process sees, or start the rank where it has one.";
  }
  return info;
}

DeviceSelection select_device_backend(const BackendRequest& request, const std::vector<DeviceInfo>& infos,
                                      const std::vector<int>& nodes) {
  const auto nccl_problem = [&]() -> std::string {
    for (std::size_t rank = 0; rank < infos.size(); ++rank) {
      if (!infos[rank].nccl_problem.empty()) return prefix_of(rank, infos) + infos[rank].nccl_problem;
    }
    return describe_shared_device(infos, nodes);
  };
  for (std::size_t rank = 0; rank < infos.size(); ++rank) {
    if (!infos[rank].problem.empty()) throw UsageError(prefix_of(rank, infos) + infos[rank].problem);
  }
  if (request.needs_cuda()) require_nccl(request, infos, nodes);
  require_one_type(infos);
  if (request.for_devices != ForDevices::automatic) return {.backend = request.for_devices};
  if (!infos.front().device) return {.backend = ForDevices::none};
  if (infos.front().device->type() != nccl_device_type) {
    return {.backend = ForDevices::staged, .reason = "NCCL serves CUDA devices"};
  }
  if (auto reason = nccl_problem(); !reason.empty()) return {.backend = ForDevices::staged, .reason = reason};
  return {.backend = ForDevices::nccl};
}

}  // namespace tutti::comm
