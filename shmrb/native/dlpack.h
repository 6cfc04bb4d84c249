// The part of DLPack's binary interface, version 1, that is used here (https://dmlc.github.io/dlpack): plain structs as
// other libraries lay them out.
#pragma once

#include <cstdint>

namespace shmrb {
namespace dlpack {

constexpr uint32_t kMajorVersion = 1;
constexpr const char* kTableName = "dlpack_exchange_api";

enum DeviceKind : int32_t { kCpu = 1 };
enum TypeCode : uint8_t { kInt = 0, kUint = 1, kFloat = 2, kBfloat = 4, kComplex = 5, kBool = 6 };

struct Version {
  uint32_t major, minor;
};

struct Device {
  int32_t kind;
  int32_t number;
};

struct DataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
  bool operator==(const DataType& other) const {
    return code == other.code && bits == other.bits && lanes == other.lanes;
  }
};

struct Tensor {
  void* data;
  Device device;
  int32_t dimensions;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements
  uint64_t byte_offset;
};

struct ManagedTensor {
  Version version;
  void* context;
  void (*deleter)(ManagedTensor*);
  uint64_t flags;
  Tensor tensor;
};

// The functions of a tensor class. Those that return an int return 0, or −1 with a Python exception set.
struct ExchangeTable {
  Version version;
  ExchangeTable* former;
  int (*allocate)(Tensor* like, ManagedTensor** out, void* context, void (*error)(void*, const char*, const char*));
  int (*from_python)(void* object, ManagedTensor** out);
  int (*to_python)(ManagedTensor* stolen, void** object);
  int (*describe)(void* object, Tensor* out);  // may be null
  int (*stream)(int32_t device_kind, int32_t device, void** out);
};

static_assert(sizeof(Tensor) == 48 && sizeof(ManagedTensor) == 80, "other libraries read these");

}  // namespace dlpack
}  // namespace shmrb
