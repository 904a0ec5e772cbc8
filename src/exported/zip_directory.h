#pragma once
// Where the records of a zip file lie. Of the format only what torch.export.save writes is taken: records that are
// stored as they are, one after the other. Pure; nothing that the file says is believed before it is checked against
// the file's size. https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace tutti::exported {

/// One file in the archive.
struct ZipRecord {
  std::string name{};
  std::uint64_t offset = 0;  ///< of its first byte
  std::uint64_t size = 0;
  std::uint32_t crc = 0;  ///< CRC-32; 0 where the writer left it out
};

/// Fills `bytes` from the file's byte `offset` on; is asked only for what lies inside the file.
using ReadAt = std::function<void(std::uint64_t offset, std::span<std::byte> bytes)>;

/// The records in the order in which they lie; their bytes are inside the file and do not overlap. Throws
/// CheckpointError for a file that is none, is cut off, compressed or encrypted, and what `read` throws.
std::vector<ZipRecord> read_zip_directory(std::uint64_t file_size, const ReadAt& read);

/// CRC-32 as zip files have it, of `bytes` after those that gave `crc`.
std::uint32_t crc32_of(std::span<const std::byte> bytes, std::uint32_t crc = 0);

}  // namespace tutti::exported
