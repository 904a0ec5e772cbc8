// Ranks: 2 as threads that connect through a store; else none. The choice of a backend for devices.
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <functional>
#include <thread>

#include "comm/select_device_backend.h"
#include "support/simulated_device/ranks.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/backend_status.h"

namespace tutti::test::c10d_selection_test {
namespace {

using comm::BackendRequest;
using comm::DeviceInfo;
using ForDevices = BackendRequest::ForDevices;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

BackendRequest parse(const std::string& name) {
  return comm::parse_backend(name, "", std::nullopt);
}

DeviceInfo cuda(int index, const std::string& uuid) {
  return {.device = at::Device(at::kCUDA, static_cast<at::DeviceIndex>(index)), .uuid = uuid};
}

TEST(DeviceSelection, ParsesNames) {
  EXPECT_EQ(parse("auto").for_devices, ForDevices::automatic);
  EXPECT_EQ(parse("nccl").for_devices, ForDevices::nccl);
  EXPECT_EQ(parse("nccl").host, "auto");
  EXPECT_EQ(parse("hierarchical").for_devices, ForDevices::none);
  EXPECT_EQ(parse("hierarchical").host, "hierarchical");
  EXPECT_EQ(parse("staged").host, "auto");
  EXPECT_EQ(parse("staged:mpi").host, "mpi");
  EXPECT_EQ(parse("staged:mpi").for_devices, ForDevices::staged);
  EXPECT_EQ(parse("c10d:gloo").for_devices, ForDevices::c10d_gloo);
  for (const auto* name : {"staged:", "staged:nccl", "staged:staged", "", "Auto"}) {
    EXPECT_NE(error_of([&] { parse(name); }).find("There is no backend"), std::string::npos) << name;
  }
  EXPECT_NE(error_of([] { parse("c10d:xccl"); }).find("device_backend"), std::string::npos);
}

TEST(DeviceSelection, TakesTheProgramsFactoryBesideABackendForCpuMemory) {
  const std::optional<C10dBackendFactory> factory(simulated_nccl());
  EXPECT_EQ(comm::parse_backend("tcp", "", factory).for_devices, ForDevices::factory);
  EXPECT_EQ(comm::parse_backend("auto", "", factory).for_devices, ForDevices::factory);
  for (const auto* name : {"nccl", "staged", "c10d:gloo"}) {
    EXPECT_NE(error_of([&] { comm::parse_backend(name, "", factory); }).find("device_backend is set beside"),
              std::string::npos);
  }
}

TEST(DeviceSelection, SurvivesTheRendezvous) {
  const DeviceInfo info{.device = at::Device(at::kCUDA, 3),
                        .uuid = "12ab",
                        .nccl_problem = "no CUDA here",
                        .problem = "rank 3\nhas none"};
  const auto copy = DeviceInfo::from_text(info.to_text());
  EXPECT_EQ(copy.device, info.device);
  EXPECT_EQ(copy.uuid, info.uuid);
  EXPECT_EQ(copy.nccl_problem, info.nccl_problem);
  EXPECT_EQ(copy.problem, info.problem);
  EXPECT_EQ(DeviceInfo::from_text(DeviceInfo().to_text()).device, std::nullopt);
  EXPECT_EQ(DeviceInfo::from_text("").device, std::nullopt);
}

TEST(DeviceSelection, AutoTakesNcclIfEachRankHasACudaDeviceOfItsOwn) {
  const auto select = [](const std::vector<DeviceInfo>& infos, const std::vector<int>& nodes) {
    return select_device_backend(parse("auto"), infos, nodes);
  };
  EXPECT_EQ(select({cuda(0, "a"), cuda(1, "b")}, {0, 0}).backend, ForDevices::nccl);
  EXPECT_EQ(select({cuda(0, "a"), cuda(0, "b")}, {0, 0}).backend, ForDevices::nccl) << "each rank sees only its own";
  EXPECT_EQ(select({cuda(0, "a"), cuda(0, "a")}, {0, 1}).backend, ForDevices::nccl) << "on two nodes";
  const auto shared = select({cuda(0, "a"), cuda(1, "b"), cuda(0, "a")}, {0, 0, 0});
  EXPECT_EQ(shared.backend, ForDevices::staged);
  EXPECT_EQ(shared.reason, "rank 0 and rank 2 share one device (cuda:0 and cuda:0, UUID a)");
  const DeviceInfo without{.device = at::Device(at::kCUDA, 0), .nccl_problem = "tutti was compiled without NCCL"};
  EXPECT_EQ(select({cuda(0, "a"), without}, {0, 0}).reason, "rank 1: tutti was compiled without NCCL");
  const DeviceInfo xpu{.device = at::Device(at::kXPU, 0)};
  EXPECT_EQ(select({xpu, xpu}, {0, 0}).backend, ForDevices::staged);
  EXPECT_EQ(select({{}, {}}, {0, 0}).backend, ForDevices::none);
}

TEST(DeviceSelection, RefusesWhatCannotWorkOnAllRanks) {
  const auto error = [](const std::string& name, const std::vector<DeviceInfo>& infos) {
    return error_of([&] { select_device_backend(parse(name), infos, std::vector<int>(infos.size())); });
  };
  EXPECT_EQ(error("nccl", {cuda(0, "a"), cuda(1, "a")}),
            "The backend nccl needs a device for each rank, but rank 0 and rank 1 share one device (cuda:0 and cuda:1, "
            "UUID a). Start no more ranks on a node than it has devices, or use the backend staged.");
  EXPECT_EQ(error("nccl", {cuda(0, "a"), {.nccl_problem = "there is no CUDA device"}}),
            "rank 1: The backend nccl cannot be used: there is no CUDA device. Leave it at auto.");
  EXPECT_EQ(error("staged", {cuda(0, "a"), {}}),
            "rank 0 uses the device type cuda, rank 1 uses cpu: pass a device of the same type on all ranks.");
  EXPECT_EQ(error("auto", {{}, {.problem = "there is no such device"}}), "rank 1: there is no such device");
}

TEST(DeviceSelection, DescribesThisRanksDevice) {
  const at::Device device(simulated::type);
  const auto info = [&](const std::string& name, at::Device on, int local_rank) {
    return device_info(parse(name), {.device = on}, local_rank);
  };
  EXPECT_EQ(info("auto", device, 1).device, at::Device(simulated::type, 1));
  EXPECT_EQ(info("auto", device, simulated::settings().devices + 1).device, at::Device(simulated::type, 1));
  EXPECT_EQ(info("auto", device, 1).problem, "");
  EXPECT_EQ(info("auto", at::kCPU, 1).device, std::nullopt);
  EXPECT_NE(info("auto", at::Device(simulated::type, 100), 1).problem.find("is not available"), std::string::npos);
  EXPECT_NE(info("auto", at::kXPU, 1).problem.find("LibTorch sees 0 xpu devices"), std::string::npos);
  EXPECT_EQ(info("tcp", device, 1).problem, "The backend tcp serves CPU memory, not " +
                                                at::Device(simulated::type, 1).str() +
                                                ". Use staged:tcp, or leave it at auto.");
  EXPECT_NE(info("nccl", device, 1).nccl_problem.find("it serves CUDA devices, not"), std::string::npos);
  EXPECT_NE(info("nccl", at::kCPU, 1).nccl_problem, "");
  const auto custom = comm::parse_backend("auto", "", simulated_nccl());
  EXPECT_EQ(device_info(custom, {.device = device, .device_backend = simulated_nccl()}, 0).problem, "");
}

TEST(DeviceSelection, IsReportedAsABackendOfThisProcess) {
  const auto statuses = backend_statuses();
  EXPECT_EQ(statuses.back().name, "staged");
  EXPECT_TRUE(statuses.back().usable) << statuses.back().reason;
}

/// Connects two ranks on threads of this process, with `options` of each rank, and returns the names or errors.
std::vector<std::string> connect_two(const std::vector<CommunicatorOptions>& options) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> ends(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      auto& end = ends[static_cast<std::size_t>(rank)];
      try {
        const auto communicator = Communicator::connect(store, rank, 2, options[static_cast<std::size_t>(rank)]);
        communicator.barrier().wait();
        end = communicator.backend_name();
      } catch (const UsageError& error) {
        end = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return ends;
}

TEST(DeviceSelection, ConnectsWithTheBackendForTheDevices) {
  const at::Device device(simulated::type);
  const auto both = [](const CommunicatorOptions& options) { return connect_two({options, options}); };
  for (const auto& name : both({.device = device})) EXPECT_TRUE(name.starts_with("staged + ")) << name;
  const auto tcp = both({.backend = "tcp"});
  for (const auto& name : both({.backend = "staged:tcp"})) EXPECT_EQ(name, "staged + " + tcp[0]);
  for (const auto& name : both({.device = device, .device_backend = simulated_nccl()})) {
    EXPECT_TRUE(name.starts_with("simulated nccl + ")) << name;
  }
}

TEST(DeviceSelection, ErrorsAreThoseOfAllRanks) {
  const at::Device missing(simulated::type, 100);
  const auto ends = connect_two({{.device = at::Device(simulated::type)}, {.device = missing}});
  EXPECT_EQ(ends[0], ends[1]);
  EXPECT_TRUE(ends[0].starts_with("rank 1: device " + missing.str() + " is not available")) << ends[0];
  for (const auto& end : connect_two({{.device = at::Device(simulated::type)}, {}})) {
    EXPECT_TRUE(
        end.starts_with("rank 0 uses the device type " + at::Device(simulated::type).str() + ", rank 1 uses cpu"))
        << end;
  }
}

}  // namespace
}  // namespace tutti::test::c10d_selection_test
