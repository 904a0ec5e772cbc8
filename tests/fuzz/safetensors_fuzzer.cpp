// The entry point of libFuzzer: https://llvm.org/docs/LibFuzzer.html
#include <cstdint>
#include <cstdlib>
#include <span>

#include "checkpoint/safetensors_layout.h"
#include "fuzz/layout_invariants.h"
#include "tutti/core/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  try {
    const auto layout = tutti::checkpoint::parse_safetensors(file);
    if (!tutti::test::layout_holds(layout, file.size())) std::abort();
  } catch (const tutti::CheckpointError&) {
    // The expected error for an invalid file.
  }
  return 0;
}
