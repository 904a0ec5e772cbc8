#pragma once
// Selects the backend for the memory of devices, from what all ranks publish at the rendezvous: all ranks select the
// same, or throw the same error before anything else is sent.
#include <c10/core/Device.h>

#include <optional>
#include <string>
#include <vector>

#include "tutti/comm/communicator_options.h"

namespace tutti::comm {

/// A backend by name, as CommunicatorOptions::backend and TUTTI_BACKEND have it.
struct BackendRequest {
  enum class ForDevices {
    none,       ///< the name of a backend for CPU memory
    automatic,  ///< "auto": one for the ranks' devices, if they have some
    nccl,
    c10d_gloo,
    staged,
    factory,  ///< CommunicatorOptions::device_backend
  };
  std::string name;           ///< as requested
  std::string error_prefix;   ///< "TUTTI_BACKEND=nccl: ", or empty for the program's request
  std::string host = "auto";  ///< the backend for CPU memory
  ForDevices for_devices = ForDevices::none;

  bool needs_cuda() const { return for_devices == ForDevices::nccl || for_devices == ForDevices::c10d_gloo; }
};

/// Parses `name`. Throws UsageError for unknown names, and for a device backend beside `device_backend`.
BackendRequest parse_backend(const std::string& name, const std::string& error_prefix,
                             const std::optional<C10dBackendFactory>& device_backend);

/// What a rank publishes about its device.
struct DeviceInfo {
  std::optional<c10::Device> device{};  ///< none for CPU memory
  std::string uuid{};                   ///< identifies it among the devices of its node; empty if unknown
  std::string nccl_problem{};           ///< why the rank cannot use NCCL, if the request considers it
  std::string problem{};                ///< why the rank cannot connect

  std::string to_text() const;
  static DeviceInfo from_text(const std::string& text);
};

/// The info of this rank. Does not throw.
DeviceInfo device_info(const BackendRequest& request, const CommunicatorOptions& options, int local_rank);

struct DeviceSelection {
  BackendRequest::ForDevices backend = BackendRequest::ForDevices::none;  ///< not automatic
  std::string reason{};  ///< why "auto" did not select NCCL; empty otherwise
};

/// Throws UsageError, on all ranks alike, if the requested backend cannot serve the ranks' devices. `nodes` is by rank.
/// No I/O.
DeviceSelection select_device_backend(const BackendRequest& request, const std::vector<DeviceInfo>& infos,
                                      const std::vector<int>& nodes);

}  // namespace tutti::comm
