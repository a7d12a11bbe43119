//===-- KaonInterfaces.td - op interfaces --------------------*- tablegen -*-===//
//
// Interfaces through which passes and reports ask ops questions.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_DIALECT_KAONINTERFACES_TD
#define KAON_DIALECT_KAONINTERFACES_TD

include "mlir/IR/OpBase.td"

def CostModelOpInterface : OpInterface<"CostModelOpInterface"> {
  let cppNamespace = "::kaon";
  let description = [{
    What an op costs when it is executed alone, from its static shapes. Shapes
    that are not known count as nothing.
  }];
  let methods = [
    InterfaceMethod<[{
        Floating-point operations. An addition, multiplication, division, square
        root or comparison is one; a fused multiply-add is two.
      }], "int64_t", "getFlops">,
    InterfaceMethod<[{
        Bytes moved to or from memory if every operand is read once and every
        result is written once.
      }], "int64_t", "getBytes", (ins), [{}], [{
        return ::kaon::getMovedBytes($_op);
      }]>,
  ];
}

#endif // KAON_DIALECT_KAONINTERFACES_TD
