#include "device/pin_host_memory.h"

#include <dlfcn.h>

#include "device/devices.h"

namespace tutti::devices {
namespace {

// LibTorch has no call for it, and its CUDA libraries load CUDA's runtime: no header and no library is needed here.
template <typename Function>
Function* runtime_function(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
}

}  // namespace

std::shared_ptr<void> pin_host_memory(void* memory, std::size_t bytes) {
  if (!accelerator_type() || bytes == 0) return nullptr;
  auto* const pin = runtime_function<int(void*, std::size_t, unsigned)>("cudaHostRegister");
  auto* const unpin = runtime_function<int(void*)>("cudaHostUnregister");
  auto* const clear_error = runtime_function<int()>("cudaGetLastError");
  if (pin == nullptr || unpin == nullptr || clear_error == nullptr) return nullptr;
  constexpr unsigned for_all_contexts = 1;  // cudaHostRegisterPortable
  if (pin(memory, bytes, for_all_contexts) != 0) {
    clear_error();
    return nullptr;
  }
  return {memory, [unpin](void* pinned) { unpin(pinned); }};
}

}  // namespace tutti::devices
